//! How fast all readers together are served: so many bytes a second, and a share of the time of those whose cores are used.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Bytes may come in bursts of so long.
const BURST: Duration = Duration::from_millis(2);
/// So many calls a second are made at least where there is a rate, lest a reader take a pause for an end.
const CALLS_PER_S: u64 = 200;
/// Nobody waits longer for a share before a call, however many are served: so much comes at least.
const MOST_OWED: Duration = Duration::from_millis(50);

pub struct Pacer {
    limits: Mutex<Limits>,
    /// Where waiting for a share has become needless.
    eased: Condvar,
    /// Nanoseconds that were waited for a share, by all threads, ever.
    waited: AtomicU64,
}

struct Limits {
    /// Bytes per second; 0: as fast as it goes.
    rate: u64,
    /// Of processor time in all time; 0: as much as there is.
    share: f64,
    /// When the bytes that were taken so far have had their time.
    free_at: Instant,
    /// When the processor time that was spent so far is no more than the share.
    paid_at: Instant,
}

impl Pacer {
    pub fn new() -> Self {
        let now = Instant::now();
        Pacer {
            limits: Mutex::new(Limits {
                rate: 0,
                share: 0.0,
                free_at: now,
                paid_at: now,
            }),
            eased: Condvar::new(),
            waited: AtomicU64::new(0),
        }
    }

    pub fn rate(&self) -> u64 {
        self.limits().rate
    }

    pub fn set_rate(&self, bytes_per_s: u64) {
        self.limits().rate = bytes_per_s;
    }

    pub fn share(&self) -> f64 {
        self.limits().share
    }

    /// 0: what is owed is forgotten, and who waits goes on.
    pub fn set_share(&self, share: f64) {
        let mut limits = self.limits();
        limits.share = share;
        if share == 0.0 {
            limits.paid_at = Instant::now();
            self.eased.notify_all();
        }
    }

    /// Waited for a share, by all threads together, ever.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    /// How many bytes may go in one call, of so many at most.
    pub fn call_bytes(&self, most: usize) -> usize {
        match self.rate() {
            0 => most,
            rate => most.min((rate / CALLS_PER_S) as usize),
        }
    }

    /// Waits until so many bytes may go.
    pub fn take(&self, bytes: usize) {
        self.wait_for_share();
        let wait = self.limits().reserve(bytes);
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }

    /// The caller's thread has used so much of a processor.
    pub fn spend(&self, used: Duration) {
        let mut limits = self.limits();
        if limits.share > 0.0 {
            let now = Instant::now();
            let paid_at = limits.paid_at.max(now) + used.div_f64(limits.share).min(MOST_OWED);
            limits.paid_at = paid_at.min(now + MOST_OWED);
        }
    }

    fn wait_for_share(&self) {
        let began = Instant::now();
        let limits = self.limits();
        let owed = limits.paid_at.saturating_duration_since(began);
        if limits.share == 0.0 || owed.is_zero() {
            return;
        }
        let waits = self
            .eased
            .wait_timeout_while(limits, owed, |limits| limits.share > 0.0);
        drop(waits.expect("no section panics"));
        let waited = began.elapsed().as_nanos() as u64;
        self.waited.fetch_add(waited, Ordering::Relaxed);
    }

    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().expect("no section panics")
    }
}

impl Limits {
    /// How long until so many bytes may go, which nobody else may have then.
    fn reserve(&mut self, bytes: usize) -> Duration {
        if self.rate == 0 {
            return Duration::ZERO;
        }
        let lasts = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        let now = Instant::now();
        let begins = self.free_at.max(now.checked_sub(BURST).unwrap_or(now));
        self.free_at = begins + lasts;
        begins.saturating_duration_since(now)
    }
}

impl Default for Pacer {
    fn default() -> Self {
        Pacer::new()
    }
}

/// What the calling thread has used of a processor, ever.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is the caller's, and the clock is there on every system that has threads.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
