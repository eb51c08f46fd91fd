use super::*;

/// xorshift64*: reproducible, and no dependency.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn row(tier: u8, slot: u32, generation: u32) -> [u8; DESCRIPTOR_BYTES] {
    let mut row = [tier; DESCRIPTOR_BYTES];
    row[1..5].copy_from_slice(&slot.to_le_bytes());
    row[5..].copy_from_slice(&generation.to_le_bytes());
    row
}

fn head(first: u32, held: u32) -> Head {
    Head {
        epoch: 7,
        first,
        held,
        lease_ms: 1000,
    }
}

/// Runs, jumps, holes, both tiers, and any generation.
fn rows(random: &mut Random, count: usize) -> Vec<[u8; DESCRIPTOR_BYTES]> {
    let mut slot = random.next() as u32;
    let jumps = random.below(4) * 5 + 1;
    (0..count)
        .map(|_| {
            slot = match random.below(jumps) {
                0 => random.next() as u32 >> random.below(32),
                _ => slot.wrapping_add(1),
            };
            let generation = random.next() as u32 >> (32 - random.below(32) as u32).min(31);
            match random.below(9) {
                0 => segments::ABSENT,
                tier => row(u8::from(tier > 6), slot, generation),
            }
        })
        .collect()
}

fn tokens(pages: usize) -> Vec<u8> {
    (0..pages * PAGE_TOKENS)
        .flat_map(|token| (token as u32 * 7).to_le_bytes())
        .collect()
}

fn answer(head: Head, rows: &[[u8; DESCRIPTOR_BYTES]], tokens: &[u8]) -> Vec<u8> {
    let mut message = encode_answer(head, rows.as_flattened()).unwrap();
    message.extend_from_slice(tokens);
    message
}

fn request(random: &mut Random) -> Request {
    let count = random.below(MAX_PAGES as u64) as u32 + 1;
    let mut rungs = vec![(count, random.next())];
    while rungs.len() < random.below(MAX_RUNGS as u64 + 1) as usize {
        let depth = rungs[rungs.len() - 1].0;
        if depth == 1 {
            break;
        }
        rungs.push((
            depth - 1 - random.below(u64::from(depth) - 1) as u32,
            random.next(),
        ));
    }
    Request {
        namespace: std::array::from_fn(|_| random.next() as u8),
        first: random.below(count.into()) as u32,
        count,
        wait_ms: random.next() as u32,
        lease_ms: random.next() as u32,
        rungs,
    }
}

#[test]
fn what_is_encoded_is_decoded() {
    let mut random = Random(1);
    for round in 0..300 {
        let asked = request(&mut random);
        assert_eq!(Request::decode(&asked.encode().unwrap()), Ok(asked));

        let count = random.below(if round % 30 == 0 { 5000 } else { 40 }) as usize;
        let first = random.below(20) as u32;
        let rows = rows(&mut random, count);
        let head = head(first, first + count as u32 + 3);
        let tokens = tokens(if count == 0 {
            0
        } else {
            first as usize + count
        });
        let message = answer(head, &rows, &tokens);
        let answer = Answer {
            head,
            described: count as u32,
            descriptors: rows.concat(),
        };
        assert_eq!(decode_answer(&message, &tokens), Ok(answer));
    }
}

#[test]
fn pages_are_given_out_up_to_the_first_whose_tokens_differ() {
    let rows: Vec<_> = (0..10).map(|slot| row(1, slot, 0)).collect();
    let ours = tokens(14);
    let message = answer(head(4, 14), &rows, &ours);
    for page in 0..14_usize {
        let mut other = ours.clone();
        other[page * TOKEN_BYTES + 17] ^= 1;
        let answer = decode_answer(&message, &other).unwrap();
        assert_eq!(answer.described, 10);
        assert_eq!(answer.descriptors, rows[..page.saturating_sub(4)].concat());
    }
}

#[test]
fn neighbours_take_next_to_nothing_and_strangers_few_bits() {
    let count = 80_000;
    let size = |rows: &[[u8; DESCRIPTOR_BYTES]]| {
        let head = head(0, count as u32);
        encode_answer(head, rows.as_flattened()).unwrap().len()
    };
    let mut places: Vec<_> = (0..count).map(|slot| row(1, slot as u32 + 5, 3)).collect();
    assert!(size(&places) <= 16 << 10, "{}", size(&places));
    let mut random = Random(2);
    for place in &mut places {
        // A tier of a million slots.
        *place = row(1, random.below(1 << 20) as u32, random.below(16) as u32);
    }
    assert!(size(&places) <= 256 << 10, "{}", size(&places));
}

/// Never a panic, and never a page that could be another one.
#[test]
fn damaged_messages_are_refused() {
    let mut random = Random(3);
    for _ in 0..2000 {
        let count = random.below(60) as usize + 1;
        let rows = rows(&mut random, count);
        let tokens = tokens(count);
        let good = answer(head(0, count as u32), &rows, &tokens);
        let at = random.below(good.len() as u64) as usize;
        let mut message = good.clone();
        message[at] ^= 1 << random.below(8);
        match at.checked_sub(good.len() - tokens.len()) {
            None => assert!(decode_answer(&message, &tokens).is_err()),
            Some(token) => {
                let left = rows[..token / TOKEN_BYTES].concat();
                assert_eq!(decode_answer(&message, &tokens).unwrap().descriptors, left);
            }
        }
        assert!(decode_answer(&good[..at], &tokens).is_err());
        assert!(decode_answer(&[&good[..], &[0]].concat(), &tokens).is_err());

        let mut message = request(&mut random).encode().unwrap();
        let at = random.below(message.len() as u64) as usize;
        assert!(Request::decode(&message[..at]).is_err());
        message[at] ^= 1 << random.below(8);
        assert!(Request::decode(&message).is_err());
    }
}

/// As above, by somebody who knows how to make a checksum.
#[test]
fn forged_messages_are_refused_or_make_sense() {
    let mut random = Random(4);
    let tokens = tokens(60);
    for _ in 0..20_000 {
        let count = random.below(60) as usize + 1;
        let rows = rows(&mut random, count);
        let mut message = match random.below(3) {
            0 => (0..random.below(200))
                .map(|_| random.next() as u8)
                .collect(),
            1 => request(&mut random).encode().unwrap(),
            _ => encode_answer(head(0, count as u32), rows.as_flattened()).unwrap(),
        };
        message.truncate(message.len().saturating_sub(CHECKSUM_BYTES));
        for _ in 0..random.below(4) {
            if !message.is_empty() {
                // Mostly in front, where the numbers are.
                let at = random.below(message.len() as u64).min(random.below(120)) as usize;
                message[at] = random.next() as u8;
            }
        }
        seal(&mut message);
        if let Ok(request) = Request::decode(&message) {
            assert_eq!(request.encode().unwrap(), message);
        }
        message.extend_from_slice(&tokens[..count * TOKEN_BYTES]);
        if let Ok(answer) = decode_answer(&message, &tokens) {
            assert!(answer.descriptors.len() <= answer.described as usize * DESCRIPTOR_BYTES);
            assert!(answer.described as usize * TOKEN_BYTES <= message.len());
        }
    }
}
