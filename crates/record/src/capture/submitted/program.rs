//! BPF programs, instruction by instruction.
//!
//! Each program builds a record on its stack and writes it to the ring: process and task, time,
//! kind, address of the request, copied data. The parts of a record are named below.
//!
//! The kernel passes the address of the event in register r1, and a program keeps it in r6. The
//! program's variables are in r7 to r9. The arguments of a call are in r1 to r5, its result is in
//! r0, and it overwrites all of these. Register 10 ([`FRAME`]) is the end of the stack, so that
//! offsets on it are negative. A record ends 8 bytes below this end.

use std::os::fd::RawFd;

use super::super::layout::EventLayout;
use super::super::uring_operations::OperationKind;
use super::btf::Offsets;

/// Encoded instructions.
pub(super) type Program = Vec<u64>;

/// Kinds of records.
pub(super) const AIO: u32 = 1;
pub(super) const URING: u32 = 2;
pub(super) const OPENED: u32 = 3;
pub(super) const COMPLETED: u32 = 4;

/// Size of a record's head: task and process (4 bytes each), time, kind, address.
pub(super) const HEAD_BYTES: usize = 32;

/// Offsets in bytes of time, kind and address in the head.
const TIME: i16 = 8;
const KIND: i16 = 16;
const ADDRESS: i16 = 24;

/// Offsets in bytes of the fields of a file record, from the end of its head.
const INODE_NUMBER: i16 = 0;
const DEVICE: i16 = 8;
const FILE_FLAGS: i16 = 16;
const MODE: i16 = 24;
const RESULT: i16 = 32;

/// Size of `struct iocb`.
const IOCB_BYTES: i16 = 64;

/// Size of the copied first fields of `struct io_kiocb`.
const REQUEST_BYTES: i16 = 96;

/// Maximum number of requests copied per `io_submit`, chosen. The loop needs a bound.
const IOCBS_MAX: i32 = 256;

/// Helper functions, from `linux/bpf.h`.
const KTIME_GET_NS: i32 = 5;
const GET_CURRENT_PID_TGID: i32 = 14;
const GET_CURRENT_TASK: i32 = 35;
const PROBE_READ_USER: i32 = 112;
const PROBE_READ_KERNEL: i32 = 113;
const RINGBUF_OUTPUT: i32 = 130;

/// Encodes an instruction. `code` is its operation, a number of the kernel's
/// `Documentation/bpf/standardization/instruction-set.rst`. `to` and `from` are registers, `offset`
/// is for memory and jumps, `value` is a constant.
const fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    code as u64
        | (to as u64) << 8
        | (from as u64) << 12
        | (offset as u16 as u64) << 16
        | (value as u32 as u64) << 32
}

/// Sets register `to` to a constant.
const fn move_value(to: u8, value: i32) -> u64 {
    instruction(0xb7, to, 0, 0, value)
}

/// Copies register `from` to `to`.
const fn copy(to: u8, from: u8) -> u64 {
    instruction(0xbf, to, from, 0, 0)
}

/// Adds a constant to register `to`.
const fn add(to: u8, value: i32) -> u64 {
    instruction(0x07, to, 0, 0, value)
}

/// Adds register `from` to register `to`.
const fn add_register(to: u8, from: u8) -> u64 {
    instruction(0x0f, to, from, 0, 0)
}

/// Multiplies register `to` by 8.
const fn multiply_by_8(to: u8) -> u64 {
    instruction(0x67, to, 0, 0, 3)
}

/// Loads 8 bytes at the address in `from` plus `offset` into register `to`.
const fn load_8_bytes(to: u8, from: u8, offset: i16) -> u64 {
    instruction(0x79, to, from, offset, 0)
}

/// Loads the byte at the address in `from` plus `offset` into register `to`.
const fn load_byte(to: u8, from: u8, offset: i16) -> u64 {
    instruction(0x71, to, from, offset, 0)
}

/// Loads 4 bytes at the address in `from` plus `offset` into register `to`.
const fn load_4_bytes(to: u8, from: u8, offset: i16) -> u64 {
    instruction(0x61, to, from, offset, 0)
}

/// Marks, in place of a source register, that the constant is the descriptor of a map
/// (BPF_PSEUDO_MAP_FD in `linux/bpf.h`).
const MAP_DESCRIPTOR: u8 = 1;

/// Marks that the address of the map's values is meant (BPF_PSEUDO_MAP_VALUE).
const MAP_VALUES: u8 = 2;

/// Loads the map of a descriptor into register `to`. The next instruction is 0.
const fn load_map(to: u8, descriptor: RawFd) -> u64 {
    instruction(0x18, to, MAP_DESCRIPTOR, 0, descriptor)
}

/// Loads the address of the values of a map into register `to`. The next instruction is 0.
const fn load_map_values(to: u8, descriptor: RawFd) -> u64 {
    instruction(0x18, to, MAP_VALUES, 0, descriptor)
}

/// Stores the 8 bytes of register `from` at the address in `to` plus `offset`.
const fn store_8_bytes(to: u8, offset: i16, from: u8) -> u64 {
    instruction(0x7b, to, from, offset, 0)
}

/// Calls a helper function of the kernel. r1 to r5 are its arguments, r0 is its result.
const fn call(helper: i32) -> u64 {
    instruction(0x85, 0, 0, 0, helper)
}

/// Skips the next `offset` instructions. A negative offset jumps back.
const fn jump(offset: i16) -> u64 {
    instruction(0x05, 0, 0, offset, 0)
}

/// Skips the next `offset` instructions if a register has this value.
const fn jump_if_equal(register: u8, value: i32, offset: i16) -> u64 {
    instruction(0x15, register, 0, offset, value)
}

/// Skips the next `offset` instructions if a register has another value.
const fn jump_if_not_equal(register: u8, value: i32, offset: i16) -> u64 {
    instruction(0x55, register, 0, offset, value)
}

/// Skips the next `offset` instructions if `register` is at least `other`. The comparison is
/// signed, like `nr` of `io_submit`.
const fn jump_if_at_least(register: u8, other: u8, offset: i16) -> u64 {
    instruction(0x7d, register, other, offset, 0)
}

/// Skips the next `offset` instructions if a register is at least `value`, as unsigned numbers.
const fn jump_if_at_least_value(register: u8, value: i32, offset: i16) -> u64 {
    instruction(0x35, register, 0, offset, value)
}

/// Skips the next `offset` instructions if a register is negative.
const fn jump_if_negative(register: u8, offset: i16) -> u64 {
    instruction(0xc5, register, 0, offset, 0)
}

/// Adds register `from` to the word at the address in register `address`.
const fn atomic_add(address: u8, from: u8) -> u64 {
    instruction(0xdb, address, from, 0, 0)
}

/// Ends the program with the result in r0.
const EXIT: u64 = instruction(0x95, 0, 0, 0, 0);
/// Register with the address of the end of the stack.
const FRAME: u8 = 10;

/// Maps that the programs write to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    /// Descriptor of the ring for the records.
    pub ring: RawFd,
    /// Descriptor of an array with one number: the records for which the ring had no space.
    pub dropped: RawFd,
}

/// Returns instructions that fill in task, process, time and kind of a record of `bytes` bytes at
/// `base` on the stack, and write it to the ring. The other fields must be there already.
fn output_record(kind: u32, base: i16, bytes: i32, output: Output) -> Program {
    vec![
        call(GET_CURRENT_PID_TGID),
        store_8_bytes(FRAME, base, 0),
        call(KTIME_GET_NS),
        store_8_bytes(FRAME, base + TIME, 0),
        move_value(1, kind as i32),
        store_8_bytes(FRAME, base + KIND, 1),
        // A map reference by descriptor takes two instructions.
        load_map(1, output.ring),
        0,
        copy(2, FRAME),
        add(2, i32::from(base)),
        move_value(3, bytes),
        move_value(4, 0),
        call(RINGBUF_OUTPUT),
        // Without space, 1 is added to the number in the array. Otherwise the four instructions of
        // this addition are skipped.
        jump_if_equal(0, 0, 4),
        load_map_values(1, output.dropped),
        0,
        move_value(2, 1),
        atomic_add(1, 2),
    ]
}

/// Returns the program at `sys_enter_io_submit`: it copies each `iocb` of the call. `None` if the
/// event lacks a field.
pub(super) fn aio_program(layout: &EventLayout, output: Output) -> Option<Program> {
    // `ctx_id` only has to exist: then the event has the known form.
    let [_, count, list] = layout.offsets(&["ctx_id", "nr", "iocbpp"])?;
    // The record ends 8 bytes below the end of the stack.
    let bytes = HEAD_BYTES as i16 + IOCB_BYTES;
    let base = -8 - bytes;
    let mut body = vec![
        // r3 = iocbpp + 8 × r9. The address is stored in the record.
        copy(1, FRAME),
        add(1, i32::from(base + ADDRESS)),
        move_value(2, 8),
        copy(3, 9),
        multiply_by_8(3),
        add_register(3, 8),
        call(PROBE_READ_USER),
        // Each 0 after a call is replaced by a jump below.
        0,
        copy(1, FRAME),
        add(1, i32::from(base) + HEAD_BYTES as i32),
        move_value(2, i32::from(IOCB_BYTES)),
        load_8_bytes(3, FRAME, base + ADDRESS),
        call(PROBE_READ_USER),
        0,
    ];
    body.extend(output_record(AIO, base, i32::from(bytes), output));
    let end = body.len() as i16;
    // An unreadable request is skipped.
    body[7] = jump_if_not_equal(0, 0, end - 8);
    body[13] = jump_if_not_equal(0, 0, end - 14);
    // r7 = number of requests, r8 = iocbpp, r9 = index of the request. The loop ends behind the
    // body and the two instructions that continue it.
    let mut program = vec![
        copy(6, 1),
        load_8_bytes(7, 6, count),
        load_8_bytes(8, 6, list),
        move_value(9, 0),
        jump_if_at_least_value(9, IOCBS_MAX, end + 3),
        jump_if_at_least(9, 7, end + 2),
    ];
    program.extend(body);
    // The jump goes back over itself, the addition, the body and the two conditions.
    program.extend([add(9, 1), jump(-(end + 4)), move_value(0, 0), EXIT]);
    Some(program)
}

/// Returns the program at `io_uring_submit_req`: it copies each read request. `None` if the event
/// lacks a field.
pub(super) fn uring_program(layout: &EventLayout, output: Output) -> Option<Program> {
    let [request, user_data, operation] = layout.offsets(&["req", "user_data", "opcode"])?;
    // The record ends with the operation and `user_data`, 8 bytes each.
    let bytes = HEAD_BYTES as i16 + REQUEST_BYTES + 16;
    let base = -8 - bytes;
    let copy_offset = base + HEAD_BYTES as i16;
    // r7 = address of the request, r8 = operation, r9 = user_data.
    let mut rest = vec![
        load_8_bytes(7, 6, request),
        store_8_bytes(FRAME, base + ADDRESS, 7),
        store_8_bytes(FRAME, copy_offset + REQUEST_BYTES, 8),
        load_8_bytes(9, 6, user_data),
        store_8_bytes(FRAME, copy_offset + REQUEST_BYTES + 8, 9),
        copy(1, FRAME),
        add(1, i32::from(copy_offset)),
        move_value(2, i32::from(REQUEST_BYTES)),
        copy(3, 7),
        call(PROBE_READ_KERNEL),
    ];
    rest.extend(output_record(URING, base, i32::from(bytes), output));
    let end = rest.len() as i16;
    // Reads jump to the rest, over the comparisons that follow. Other operations skip the rest.
    let mut program = vec![copy(6, 1), load_byte(8, 6, operation)];
    let reads: Vec<u8> = OperationKind::read_numbers().collect();
    let jumps = reads.iter().zip((1..=reads.len() as i16).rev());
    program.extend(jumps.map(|(&read, offset)| jump_if_equal(8, i32::from(read), offset)));
    program.push(jump(end));
    program.extend(rest);
    program.extend([move_value(0, 0), EXIT]);
    Some(program)
}

/// Appends instructions that read `bytes` bytes of kernel memory into the stack at `slot`, relative
/// to its end. The address is the pointer in r8 plus `offset`. An unreadable address reads as 0.
fn push_kernel_read(program: &mut Program, slot: i16, offset: i32, bytes: i32) {
    program.extend([
        copy(1, FRAME),
        add(1, i32::from(slot)),
        move_value(2, bytes),
        copy(3, 8),
        add(3, offset),
        call(PROBE_READ_KERNEL),
    ]);
}

/// Appends instructions that write inode number, device, flags and mode of the file in r8 into the
/// record at `base` on the stack. It must be cleared: values are shorter than their fields. The
/// instructions overwrite r8, and the 8 bytes below the record.
fn push_file_record(program: &mut Program, base: i16, offsets: &Offsets) {
    let copy_offset = base + HEAD_BYTES as i16;
    let [number, device, flags, mode] =
        [INODE_NUMBER, DEVICE, FILE_FLAGS, MODE].map(|offset| copy_offset + offset);
    let pointer = base - 8;
    push_kernel_read(program, flags, offsets.file_flags, 4);
    // r8 = address of the inode.
    push_kernel_read(program, pointer, offsets.file_inode, 8);
    program.push(load_8_bytes(8, FRAME, pointer));
    push_kernel_read(program, number, offsets.inode_number, 8);
    push_kernel_read(program, mode, offsets.inode_mode, 2);
    // r8 = address of the super block.
    push_kernel_read(program, pointer, offsets.inode_block, 8);
    program.push(load_8_bytes(8, FRAME, pointer));
    push_kernel_read(program, device, offsets.block_device, 4);
}

/// Size of a file record: its head, and inode number, device, flags, mode and result.
const FILE_BYTES: i16 = HEAD_BYTES as i16 + 40;

/// Location of a file record, relative to the end of the stack.
const FILE_BASE: i16 = -FILE_BYTES - 8;

/// Returns instructions that clear the file record, since a field may be wider than its value.
fn clear_record() -> Program {
    let words = (0..FILE_BYTES / 8).map(|nth| store_8_bytes(FRAME, FILE_BASE + 8 * nth, 0));
    std::iter::once(move_value(0, 0)).chain(words).collect()
}

/// Returns the program at the end of an open call: it reports the file of the new descriptor.
/// `None` if the event lacks a field.
pub(super) fn open_program(
    layout: &EventLayout,
    output: Output,
    offsets: &Offsets,
) -> Option<Program> {
    let [result] = layout.offsets(&["ret"])?;
    let mut program = vec![copy(6, 1)];
    program.extend(clear_record());
    // Space below the record for a pointer that is read.
    let pointer = FILE_BASE - 8;
    // r7 = the descriptor. r8 follows the pointers from the task to its array of open files.
    // In the record the descriptor takes the place of the address of a request.
    let mut rest =
        vec![store_8_bytes(FRAME, FILE_BASE + ADDRESS, 7), call(GET_CURRENT_TASK), copy(8, 0)];
    for offset in [offsets.task_files, offsets.files_table, offsets.table_list] {
        push_kernel_read(&mut rest, pointer, offset, 8);
        rest.push(load_8_bytes(8, FRAME, pointer));
    }
    // r8 = list + 8 × descriptor.
    rest.extend([multiply_by_8(7), add_register(8, 7)]);
    push_kernel_read(&mut rest, pointer, 0, 8);
    rest.push(load_8_bytes(8, FRAME, pointer));
    push_file_record(&mut rest, FILE_BASE, offsets);
    rest.extend(output_record(OPENED, FILE_BASE, i32::from(FILE_BYTES), output));
    // A negative descriptor is an error.
    program.extend([load_8_bytes(7, 6, result), jump_if_negative(7, rest.len() as i16)]);
    program.extend(rest);
    program.extend([move_value(0, 0), EXIT]);
    Some(program)
}

/// Returns the program at `io_uring_complete`: it reports the request, its file and its result.
/// `None` if the event lacks a field.
pub(super) fn completion_program(
    layout: &EventLayout,
    output: Output,
    offsets: &Offsets,
) -> Option<Program> {
    let [request, result] = layout.offsets(&["req", "res"])?;
    let mut program = vec![copy(6, 1)];
    program.extend(clear_record());
    // Space below the record for a pointer that is read.
    let pointer = FILE_BASE - 8;
    // r8 = address of the request, r7 = its result, a signed number of 4 bytes.
    program.extend([
        load_8_bytes(8, 6, request),
        store_8_bytes(FRAME, FILE_BASE + ADDRESS, 8),
        load_4_bytes(7, 6, result),
        store_8_bytes(FRAME, FILE_BASE + HEAD_BYTES as i16 + RESULT, 7),
    ]);
    // The pointer to the file is the first field of a request. r8 = address of the file.
    push_kernel_read(&mut program, pointer, 0, 8);
    program.push(load_8_bytes(8, FRAME, pointer));
    push_file_record(&mut program, FILE_BASE, offsets);
    program.extend(output_record(COMPLETED, FILE_BASE, i32::from(FILE_BYTES), output));
    program.extend([move_value(0, 0), EXIT]);
    Some(program)
}
