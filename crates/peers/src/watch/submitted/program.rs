//! The two BPF programs, instruction by instruction.
//!
//! Each builds a record on its stack and gives it out to the ring: the task, the kind, the time, the
//! address of the request, and a copy of it. Registers: r6 the event, r7 to r9 what the program
//! keeps; r1 to r5 are arguments of a call and r0 its result.

use std::os::fd::RawFd;

use super::super::layout::EventLayout;

/// Instructions.
pub(super) type Program = Vec<u64>;

/// Makes a program for an event that is laid out so, and for the map of this descriptor.
pub(super) type Make = fn(&EventLayout, RawFd) -> Option<Program>;

/// Kinds of records.
pub(super) const AIO: u32 = 1;
pub(super) const URING: u32 = 2;

/// Length of what stands before the copy: task, kind, time, address.
pub(super) const HEAD_BYTES: usize = 24;

/// Length of `struct iocb`, and of the first fields of `struct io_kiocb`.
const IOCB_BYTES: i16 = 64;
const REQUEST_BYTES: i16 = 96;

/// Requests of one `io_submit` that are taken.
const IOCBS_MAX: i32 = 256;

/// Helper functions, as in `linux/bpf.h`.
const KTIME_GET_NS: i32 = 5;
const GET_CURRENT_PID_TGID: i32 = 14;
const PROBE_READ_USER: i32 = 112;
const PROBE_READ_KERNEL: i32 = 113;
const RINGBUF_OUTPUT: i32 = 130;

const fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    code as u64
        | (to as u64) << 8
        | (from as u64) << 12
        | (offset as u16 as u64) << 16
        | (value as u32 as u64) << 32
}

const fn move_value(to: u8, value: i32) -> u64 {
    instruction(0xb7, to, 0, 0, value)
}

const fn copy(to: u8, from: u8) -> u64 {
    instruction(0xbf, to, from, 0, 0)
}

const fn add(to: u8, value: i32) -> u64 {
    instruction(0x07, to, 0, 0, value)
}

const fn load_word(to: u8, from: u8, offset: i16) -> u64 {
    instruction(0x79, to, from, offset, 0)
}

const fn load_byte(to: u8, from: u8, offset: i16) -> u64 {
    instruction(0x71, to, from, offset, 0)
}

const fn store_word(to: u8, offset: i16, from: u8) -> u64 {
    instruction(0x7b, to, from, offset, 0)
}

const fn store_half(to: u8, offset: i16, from: u8) -> u64 {
    instruction(0x63, to, from, offset, 0)
}

const fn call(helper: i32) -> u64 {
    instruction(0x85, 0, 0, 0, helper)
}

const fn jump(offset: i16) -> u64 {
    instruction(0x05, 0, 0, offset, 0)
}

const fn jump_if_equal(register: u8, value: i32, offset: i16) -> u64 {
    instruction(0x15, register, 0, offset, value)
}

const fn jump_if_not_equal(register: u8, value: i32, offset: i16) -> u64 {
    instruction(0x55, register, 0, offset, value)
}

/// Signed, as `nr` of `io_submit` is.
const fn jump_if_at_least(register: u8, other: u8, offset: i16) -> u64 {
    instruction(0x7d, register, other, offset, 0)
}

const fn jump_if_at_least_value(register: u8, value: i32, offset: i16) -> u64 {
    instruction(0x35, register, 0, offset, value)
}

const EXIT: u64 = instruction(0x95, 0, 0, 0, 0);
const FRAME: u8 = 10;

/// Fills in task, kind and time of a record at `base` of the stack, and gives it out.
fn give_out(kind: u32, base: i16, bytes: i32, map: RawFd) -> Program {
    vec![
        call(GET_CURRENT_PID_TGID),
        store_half(FRAME, base, 0),
        move_value(1, kind as i32),
        store_half(FRAME, base + 4, 1),
        call(KTIME_GET_NS),
        store_word(FRAME, base + 8, 0),
        // A map by its descriptor takes two instructions.
        instruction(0x18, 1, 1, 0, map),
        0,
        copy(2, FRAME),
        add(2, i32::from(base)),
        move_value(3, bytes),
        move_value(4, 0),
        call(RINGBUF_OUTPUT),
    ]
}

/// The program at `sys_enter_io_submit`: each `iocb` of the call.
pub(super) fn of_aio() -> Make {
    |layout, map| {
        let [_, count, list] = layout.offsets(&["ctx_id", "nr", "iocbpp"])?;
        let bytes = HEAD_BYTES as i16 + IOCB_BYTES;
        let base = -8 - bytes;
        let mut each = vec![
            // r3 = iocbpp + 8 × r9; the address goes to its place in the record.
            copy(1, FRAME),
            add(1, i32::from(base + 16)),
            move_value(2, 8),
            copy(3, 9),
            instruction(0x67, 3, 0, 0, 3),
            instruction(0x0f, 3, 8, 0, 0),
            call(PROBE_READ_USER),
            0,
            copy(1, FRAME),
            add(1, i32::from(base) + HEAD_BYTES as i32),
            move_value(2, i32::from(IOCB_BYTES)),
            load_word(3, FRAME, base + 16),
            call(PROBE_READ_USER),
            0,
        ];
        each.extend(give_out(AIO, base, i32::from(bytes), map));
        let end = each.len() as i16;
        // A request that can't be read is passed over.
        each[7] = jump_if_not_equal(0, 0, end - 8);
        each[13] = jump_if_not_equal(0, 0, end - 14);
        let mut program = vec![
            copy(6, 1),
            load_word(7, 6, count),
            load_word(8, 6, list),
            move_value(9, 0),
            jump_if_at_least_value(9, IOCBS_MAX, end + 3),
            jump_if_at_least(9, 7, end + 2),
        ];
        program.extend(each);
        program.extend([add(9, 1), jump(-(end + 4)), move_value(0, 0), EXIT]);
        Some(program)
    }
}

/// The program at `io_uring_submit_req`: each request that reads.
pub(super) fn of_uring() -> Make {
    |layout, map| {
        let [request, user_data, operation] = layout.offsets(&["req", "user_data", "opcode"])?;
        let bytes = HEAD_BYTES as i16 + REQUEST_BYTES + 16;
        let base = -8 - bytes;
        let copy_at = base + HEAD_BYTES as i16;
        let mut rest = vec![
            load_word(7, 6, request),
            store_word(FRAME, base + 16, 7),
            store_word(FRAME, copy_at + REQUEST_BYTES, 8),
            load_word(9, 6, user_data),
            store_word(FRAME, copy_at + REQUEST_BYTES + 8, 9),
            copy(1, FRAME),
            add(1, i32::from(copy_at)),
            move_value(2, i32::from(REQUEST_BYTES)),
            copy(3, 7),
            call(PROBE_READ_KERNEL),
        ];
        rest.extend(give_out(URING, base, i32::from(bytes), map));
        let end = rest.len() as i16;
        // READV, READ_FIXED and READ.
        let mut program = vec![
            copy(6, 1),
            load_byte(8, 6, operation),
            jump_if_equal(8, 1, 3),
            jump_if_equal(8, 4, 2),
            jump_if_equal(8, 22, 1),
            jump(end),
        ];
        program.extend(rest);
        program.extend([move_value(0, 0), EXIT]);
        Some(program)
    }
}
