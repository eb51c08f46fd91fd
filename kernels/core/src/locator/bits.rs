//! Integers of up to 32 bits, packed without gaps, lowest bits first; the last byte is filled up with zeros.

/// How many bits hold every value up to `most`.
pub fn width(most: u32) -> u32 {
    u32::BITS - most.leading_zeros()
}

/// Bytes of so many integers. Both are below 2^32, so nothing overflows.
pub fn bytes(count: usize, width: u32) -> usize {
    (count * width as usize).div_ceil(8)
}

/// Every value fits into `width` bits.
pub fn pack(out: &mut Vec<u8>, width: u32, values: impl Iterator<Item = u32>) {
    let (mut pending, mut bits) = (0_u64, 0);
    for value in values {
        pending |= u64::from(value) << bits;
        bits += width;
        if bits >= 32 {
            out.extend_from_slice(&(pending as u32).to_le_bytes());
            pending >>= 32;
            bits -= 32;
        }
    }
    out.extend_from_slice(&pending.to_le_bytes()[..bits.div_ceil(8) as usize]);
}

/// The integer at `index`; `packed` holds it as a whole.
pub fn at(packed: &[u8], width: u32, index: usize) -> u32 {
    let bit = index * width as usize;
    let bytes = &packed[bit / 8..];
    let word = match bytes.first_chunk::<8>() {
        Some(word) => u64::from_le_bytes(*word),
        None => bytes
            .iter()
            .rev()
            .fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    (word >> (bit % 8) & ((1_u64 << width) - 1)) as u32
}
