//! A program for a RISC-V machine: the sieve of Eratosthenes.

/// Counts the primes below a1 (from 2 to 2^31), using a1 bytes of zeros at a0; stores the number to
/// the word at a2, and calls with it in a0.
pub(crate) const SIEVE: [u32; 21] = [
    0x00200293, //         li t0, 2
    0x00000e93, //         li t4, 0
    0x04b2f063, // outer:  bgeu t0, a1, done
    0x00550333, //         add t1, a0, t0
    0x00034383, //         lbu t2, 0(t1)
    0x02039663, //         bne t2, zero, next
    0x001e8e93, //         addi t4, t4, 1
    0x0252bf33, //         mulhu t5, t0, t0
    0x020f1063, //         bne t5, zero, next
    0x02528e33, //         mul t3, t0, t0
    0x00100f93, //         li t6, 1
    0x00be7a63, // inner:  bgeu t3, a1, next
    0x01c50333, //         add t1, a0, t3
    0x01f30023, //         sb t6, 0(t1)
    0x005e0e33, //         add t3, t3, t0
    0xff1ff06f, //         j inner
    0x00128293, // next:   addi t0, t0, 1
    0xfc5ff06f, //         j outer
    0x01d62023, // done:   sw t4, 0(a2)
    0x000e8513, //         mv a0, t4
    0x00000073, //         ecall
];
