//! A program for a RISC-V machine: a cipher with one word of state, and the same in Rust.

/// Enciphers the bytes from a0 to a1 in place, with the key in a2 (not 0), in twelve instructions
/// for each byte; then calls.
pub(crate) const CIPHER: [u32; 13] = [
    0x02b57863, // next:  bgeu a0, a1, done
    0x00d61313, //        slli t1, a2, 13
    0x00664633, //        xor a2, a2, t1
    0x01165313, //        srli t1, a2, 17
    0x00664633, //        xor a2, a2, t1
    0x00561313, //        slli t1, a2, 5
    0x00664633, //        xor a2, a2, t1
    0x00054283, //        lbu t0, 0(a0)
    0x00c2c2b3, //        xor t0, t0, a2
    0x00550023, //        sb t0, 0(a0)
    0x00150513, //        addi a0, a0, 1
    0xfd5ff06f, //        j next
    0x00000073, // done:  ecall
];

/// Does the same to `bytes` in Rust.
pub(crate) fn encipher(key: u32, bytes: &mut [u8]) {
    let mut state = key;
    for byte in bytes {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        *byte ^= state as u8;
    }
}
