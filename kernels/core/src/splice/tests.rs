use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::*;

const DEADLINE: Duration = Duration::from_secs(10);

/// Two connected sockets: ours, which does not block, and the peer's.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let theirs = listener.accept().unwrap().0;
    ours.set_nonblocking(true).unwrap();
    theirs.set_read_timeout(Some(DEADLINE)).unwrap();
    theirs.set_write_timeout(Some(DEADLINE)).unwrap();
    (ours, theirs)
}

fn gaps() -> Gaps {
    Gaps::new(&[0.05, 1.0]).unwrap()
}

struct Passage {
    splicer: Splicer,
    node: TcpStream,
    client: TcpStream,
    number: usize,
    _ours: (TcpStream, TcpStream),
}

fn passage(first: &[u8]) -> Passage {
    let splicer = Splicer::new(gaps()).unwrap();
    let ((source, node), (target, client)) = (pair(), pair());
    let number = splicer
        .start(source.as_fd(), target.as_fd(), first)
        .unwrap();
    Passage {
        splicer,
        node,
        client,
        number,
        _ours: (source, target),
    }
}

impl Passage {
    fn received(&mut self, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.client.read_exact(&mut data).unwrap();
        data
    }

    fn end(&self) -> End {
        let started = Instant::now();
        while self.splicer.ended() != [self.number] {
            assert!(started.elapsed() < DEADLINE);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.splicer.stop(self.number).unwrap()
    }
}

fn chunk(size: usize) -> Vec<u8> {
    let mut chunk = format!("{size:x}\r\n").into_bytes();
    chunk.resize(chunk.len() + size, b'x');
    chunk.extend_from_slice(b"\r\n");
    chunk
}

#[test]
fn a_stream_is_passed_on_to_its_end() {
    let mut passage = passage(b"first");
    assert_eq!(passage.received(5), b"first");
    let body = [chunk(3), chunk(100_000), b"0\r\n\r\n".to_vec()].concat();
    for piece in body.chunks(7_001) {
        passage.node.write_all(piece).unwrap();
    }
    assert_eq!(passage.received(body.len()), body);
    let end = passage.end();
    assert_eq!(end.state, State::Ended { clean: true });
    assert!(end.unsent.is_empty());
    assert_eq!(passage.splicer.streams(), 0);
    assert!(passage.splicer.stop(passage.number).is_none());
}

#[test]
fn what_follows_the_end_is_held_back() {
    let mut passage = passage(b"");
    passage.node.write_all(b"0\r\n\r\nHTTP/1.1 ").unwrap();
    assert_eq!(passage.received(5), b"0\r\n\r\n");
    assert_eq!(passage.end().state, State::Ended { clean: false });
}

#[test]
fn a_source_that_breaks_off_is_lost_and_the_place_is_known() {
    for (sent, between) in [
        (chunk(3), true),
        (chunk(3)[..5].to_vec(), false),
        (Vec::new(), true),
    ] {
        let mut passage = passage(b"\n\n\r\n");
        passage.node.write_all(&sent).unwrap();
        passage.node.shutdown(Shutdown::Both).unwrap();
        let end = passage.end();
        assert!(matches!(end.state, State::Lost(_)), "{end:?}");
        assert_eq!(end.between, between);
        let all = [b"\n\n\r\n".to_vec(), sent].concat();
        assert_eq!(end.tail, all[all.len() - 4..]);
        assert_eq!(passage.received(all.len()), all);
    }
}

#[test]
fn garbage_is_not_passed_on() {
    let mut passage = passage(b"");
    passage.node.write_all(b"no chunk at all").unwrap();
    assert!(matches!(passage.end().state, State::Lost(_)));
    drop((passage.splicer, passage._ours));
    assert_eq!(passage.client.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn a_target_that_is_gone_ends_it() {
    let Passage {
        splicer,
        mut node,
        client,
        number,
        _ours,
    } = passage(b"");
    drop(client);
    let started = Instant::now();
    while splicer.ended().is_empty() {
        assert!(started.elapsed() < DEADLINE);
        node.write_all(&chunk(10)).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(splicer.stop(number).unwrap().state, State::Gone);
}

#[test]
fn a_target_that_does_not_read_holds_the_source_back_and_loses_nothing() {
    let mut passage = passage(b"");
    let body = [chunk(64 << 20), b"0\r\n\r\n".to_vec()].concat();
    let mut node = passage.node.try_clone().unwrap();
    let sent = body.clone();
    let writer = std::thread::spawn(move || node.write_all(&sent));
    let started = Instant::now();
    while passage.splicer.progress(passage.number) != passage.splicer.progress(passage.number)
        || !passage.splicer.progress(passage.number).unwrap().1
    {
        assert!(started.elapsed() < DEADLINE);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(passage.splicer.progress(passage.number).unwrap().0 < body.len() as u64);
    assert!(passage.received(body.len()) == body);
    writer.join().unwrap().unwrap();
    assert_eq!(passage.end().state, State::Ended { clean: true });
}

#[test]
fn stopped_nothing_is_read_or_written_any_more() {
    let mut passage = passage(b"");
    passage.node.write_all(&chunk(3)).unwrap();
    passage.received(chunk(3).len());
    let end = passage.splicer.stop(passage.number).unwrap();
    assert_eq!(end.state, State::Open);
    assert!(end.between && end.unsent.is_empty());
    passage.node.write_all(b"for others").unwrap();
    let mut read = [0; 10];
    passage._ours.0.set_nonblocking(false).unwrap();
    passage._ours.0.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"for others");
    assert!(passage.splicer.ended().is_empty());
}

#[test]
fn stopped_while_the_target_is_full_what_is_left_is_told() {
    let mut passage = passage(&vec![b'a'; 16 << 20]);
    assert!(passage.splicer.progress(passage.number).unwrap().1);
    let end = passage.splicer.stop(passage.number).unwrap();
    let arrived = (16 << 20) - end.unsent.len();
    assert_eq!(passage.received(arrived), vec![b'a'; arrived]);
}

#[test]
fn many_streams_start_pass_and_stop_at_once() {
    let splicer = Splicer::new(gaps()).unwrap();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let splicer = &splicer;
            scope.spawn(move || {
                for round in 0..25 {
                    let ((source, mut node), (target, mut client)) = (pair(), pair());
                    let number = splicer.start(source.as_fd(), target.as_fd(), b"").unwrap();
                    for _ in 0..4 {
                        node.write_all(&chunk(round + 1)).unwrap();
                        let mut data = chunk(round + 1);
                        client.read_exact(&mut data).unwrap();
                        assert_eq!(data, chunk(round + 1));
                    }
                    if worker % 2 == 0 {
                        node.write_all(b"0\r\n\r\n").unwrap();
                        client.read_exact(&mut [0; 5]).unwrap();
                    }
                    splicer.stop(number).unwrap();
                }
            });
        }
    });
    assert_eq!(splicer.streams(), 0);
}

#[test]
fn a_source_that_always_has_more_has_no_more_turns_for_it() {
    let ((source, mut node), (target, _client)) = (pair(), pair());
    node.write_all(&chunk(20_000)).unwrap();
    let shared = Shared::new(gaps(), UnixStream::pair().unwrap().0);
    let stream = Arc::new(Mutex::new(Stream::new(source, target)));
    lock(&shared.streams).insert(0, Arc::clone(&stream));
    let (poll, mut turns, mut buffer) = (Poll::new().unwrap(), HashSet::new(), [0; 16]);
    for round in 0..20 {
        let before = lock(&stream).passed;
        shared.round(
            &mut turns,
            std::iter::once((0, true)),
            &mut buffer,
            poll.registry(),
        );
        // Four reads for the turn that it has anyway, and four for the event.
        let reads = if round == 0 { 4 } else { 8 };
        assert_eq!(lock(&stream).passed - before, reads * 16);
    }
}

#[test]
fn silences_are_counted_and_the_end_is_none() {
    let mut one = passage(b"");
    for pause in [0, 0, 80] {
        std::thread::sleep(Duration::from_millis(pause));
        one.node.write_all(&chunk(3)).unwrap();
        one.received(chunk(3).len());
    }
    one.node.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(one.end().state, State::Ended { clean: true });
    let (counts, seconds) = one.splicer.gaps().counted();
    assert_eq!(counts.iter().sum::<u64>(), 3);
    assert!(counts[1] + counts[2] >= 1, "{counts:?}");
    assert!(seconds >= 0.08);
}

#[test]
fn gaps_want_ascending_bounds() {
    for bounds in [
        &[1.0, 1.0][..],
        &[0.0],
        &[-1.0, 2.0],
        &[f64::NAN],
        &[f64::INFINITY],
    ] {
        assert!(Gaps::new(bounds).is_none(), "{bounds:?}");
    }
    let gaps = Gaps::new(&[]).unwrap();
    gaps.add(Duration::from_secs(2));
    assert_eq!(gaps.counted(), (vec![1], 2.0));
}
