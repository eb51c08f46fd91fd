//! Where pages lie, in few bytes: segments of pages in one tier, whose slots are a run or bit-packed offsets.

use super::{bits, value, LocatorError, Reader, Result, DESCRIPTOR_BYTES, LENDING_TIERS, NOT_LENT};

/// Pages of a segment at most: what is far from the others costs only its neighbours more bits.
const BLOCK: usize = 1024;
/// From so many neighbours on, a run of its own is shorter than offsets.
const RUN: usize = 8;
const HEAD_BYTES: usize = 16;

/// The descriptor of a page that is not lent.
pub const ABSENT: [u8; DESCRIPTOR_BYTES] = [NOT_LENT, 0, 0, 0, 0, 0, 0, 0, 0];

#[derive(Clone, Copy)]
pub struct Place {
    pub tier: u8,
    slot: u32,
    generation: u32,
}

impl Place {
    pub fn unpack(row: &[u8; DESCRIPTOR_BYTES]) -> Self {
        let [tier, a, b, c, d, e, f, g, h] = *row;
        Place {
            tier,
            slot: u32::from_le_bytes([a, b, c, d]),
            generation: u32::from_le_bytes([e, f, g, h]),
        }
    }

    pub fn pack(self) -> [u8; DESCRIPTOR_BYTES] {
        let mut row = [self.tier; DESCRIPTOR_BYTES];
        row[1..5].copy_from_slice(&self.slot.to_le_bytes());
        row[5..].copy_from_slice(&self.generation.to_le_bytes());
        row
    }

    fn precedes(&self, next: &Place) -> bool {
        self.tier == next.tier && self.slot.checked_add(1) == Some(next.slot)
    }
}

/// Returns the number of segments.
pub fn write(out: &mut Vec<u8>, places: &[Place]) -> u32 {
    let mut count = 0;
    let (mut at, mut scattered) = (0, 0);
    for run in places.chunk_by(Place::precedes) {
        let begin = at;
        at += run.len();
        if run.len() < RUN {
            continue;
        }
        count += write_scattered(out, &places[scattered..begin]);
        for part in run.chunks(BLOCK) {
            write_segment(out, part, true);
            count += 1;
        }
        scattered = at;
    }
    count + write_scattered(out, &places[scattered..])
}

fn write_scattered(out: &mut Vec<u8>, places: &[Place]) -> u32 {
    let mut count = 0;
    for tier in places.chunk_by(|one, other| one.tier == other.tier) {
        for part in tier.chunks(BLOCK) {
            write_segment(out, part, false);
            count += 1;
        }
    }
    count
}

fn write_segment(out: &mut Vec<u8>, places: &[Place], run: bool) {
    let slots = Span::of(places.iter().map(|place| place.slot));
    let generations = Span::of(places.iter().map(|place| place.generation));
    // Slots that are all the same have width 0 too, but no two pages share a slot.
    let slot_bits = if run { 0 } else { slots.width().max(1) };
    out.extend_from_slice(&[
        places[0].tier,
        slot_bits as u8,
        generations.width() as u8,
        0,
    ]);
    for number in [places.len() as u32, slots.least, generations.least] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    if !run {
        let offsets = places.iter().map(|place| place.slot - slots.least);
        bits::pack(out, slot_bits, offsets);
    }
    let offsets = places
        .iter()
        .map(|place| place.generation - generations.least);
    bits::pack(out, generations.width(), offsets);
}

/// Places of exactly `lent` pages.
pub fn read(reader: &mut Reader<'_>, segments: u32, lent: u32) -> Result<Vec<Place>> {
    if segments > lent {
        return Err(value("segments", segments));
    }
    // The bitmap has a bit for each: what is reserved here is at most 96 times as long as it.
    let mut places = Vec::with_capacity(lent as usize);
    for _ in 0..segments {
        let head = reader.take(HEAD_BYTES, "segments")?;
        let [tier, slot_bits, generation_bits, zero] = [head[0], head[1], head[2], head[3]];
        if tier >= LENDING_TIERS || slot_bits > 32 || generation_bits > 32 || zero != 0 {
            return Err(value("head of a segment", super::word(head)));
        }
        let [count, slot, generation] = [4, 8, 12].map(|at| super::word(&head[at..]));
        if count == 0 || count as usize > lent as usize - places.len() {
            return Err(value("pages of a segment", count));
        }
        let (slot_bits, generation_bits) = (u32::from(slot_bits), u32::from(generation_bits));
        let size = |width| bits::bytes(count as usize, width);
        let slots = reader.take(size(slot_bits), "segments")?;
        let generations = reader.take(size(generation_bits), "segments")?;
        for index in 0..count {
            let slot_offset = match slot_bits {
                0 => index,
                width => bits::at(slots, width, index as usize),
            };
            let generation_offset = match generation_bits {
                0 => 0,
                width => bits::at(generations, width, index as usize),
            };
            places.push(Place {
                tier,
                slot: sum(slot, slot_offset, "slot")?,
                generation: sum(generation, generation_offset, "generation")?,
            });
        }
    }
    match lent as usize - places.len() {
        0 => Ok(places),
        missing => Err(value("pages in no segment", missing as u32)),
    }
}

fn sum(base: u32, offset: u32, what: &'static str) -> Result<u32> {
    base.checked_add(offset).ok_or(LocatorError::Value {
        what,
        value: u64::from(base) + u64::from(offset),
    })
}

/// The least of some numbers, and how far the greatest is from it.
struct Span {
    least: u32,
    range: u32,
}

impl Span {
    fn of(numbers: impl Iterator<Item = u32>) -> Self {
        let (least, most) = numbers.fold((u32::MAX, 0), |(least, most), number| {
            (least.min(number), most.max(number))
        });
        Span {
            least,
            range: most - least,
        }
    }

    fn width(&self) -> u32 {
        bits::width(self.range)
    }
}
