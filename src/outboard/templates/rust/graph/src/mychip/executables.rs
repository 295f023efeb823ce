//! Executables: what compiler.py makes of a graph. A line says what the chip does, on operands of a call (o0, o1, ...)
//! and on places in the call's scratch memory (s0, s64, ...), all of them dense numbers of 32 bits:
//!
//!   mychip 1 CHECKSUM
//!   add s0 o0 o1 12
//!   relu o2 s0 - 12
//!   mm o3 o2 o4 3 4 5

use crate::{abi::*, fail};
use std::ffi::{c_char, c_void};
use std::slice;

const UNSUPPORTED: Status = 4; // an `ob_status` that kernels do without

pub const FUNCTIONS: Functions = Functions {
    find: Some(library_find),
    call: Some(library_call),
    load: Some(function_load),
    release: Some(function_release),
};

/// What the device says of the code that it runs.
pub fn describe_code(properties: &mut Properties) {
    write_text(&mut properties.compiler, "mychip-cc 1"); // name and version of compiler.py
    properties.static_sizes = 1; // each executable is for one set of sizes
    properties.max_work_group_size = 1;
    properties.sub_group_size = 1;
}

/// The place of an operand, or one in scratch memory.
#[derive(Clone, Copy)]
enum Place {
    Operand(usize),
    Scratch(u64),
    Nowhere,
}

struct Line {
    operation: String,
    places: [Place; 3],
    sizes: [usize; 3],
}

fn parse_place(word: &str) -> Option<Place> {
    match word.split_at_checked(1)? {
        ("o", number) => Some(Place::Operand(number.parse().ok()?)),
        ("s", number) => Some(Place::Scratch(number.parse().ok()?)),
        ("-", "") => Some(Place::Nowhere),
        _ => None,
    }
}

fn parse_line(line: &str) -> Option<Line> {
    let mut words = line.split(' ');
    let operation = words.next()?.to_string();
    let mut place = || parse_place(words.next()?);
    let places = [place()?, place()?, place()?];
    let mut sizes = [0; 3];
    for (size, word) in sizes.iter_mut().zip(words) {
        *size = word.parse().ok()?;
    }
    Some(Line { operation, places, sizes })
}

/// FNV-1a.
fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf29ce484222325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x100000001b3))
}

fn parse(bytes: &[u8]) -> Option<Vec<Line>> {
    let (head, text) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
    if head != format!("mychip 1 {:016x}", checksum(text)) {
        return None;
    }
    text.lines().map(parse_line).collect()
}

unsafe extern "C" fn function_load(
    _device: Handle,
    bytes: *const c_void,
    size: usize,
    function: *mut Handle,
) -> Status {
    let bytes = if size == 0 { &[] } else { slice::from_raw_parts(bytes.cast::<u8>(), size) };
    match parse(bytes) {
        Some(lines) => *function = Box::into_raw(Box::new(lines)) as Handle,
        None => return fail(BUILD_FAILED, "this is no executable of mychip 1, or it is damaged"),
    }
    OK
}

unsafe extern "C" fn function_release(function: Handle) -> Status {
    drop(Box::from_raw(function as *mut Vec<Line>));
    OK
}

/// The address of a place; the last operand is the scratch memory, if the compiler asked for some.
fn address(place: Place, operands: &[Operand]) -> Option<Address> {
    match place {
        Place::Operand(number) => Some(operands.get(number)?.data),
        Place::Scratch(offset) => Some(operands.last()?.data + offset),
        Place::Nowhere => None,
    }
}

unsafe fn numbers<'a>(place: Place, operands: &[Operand], count: usize) -> &'a [f32] {
    address(place, operands).map_or(&[], |at| slice::from_raw_parts(at as *const f32, count))
}

fn multiply_matrices(to: &mut [f32], a: &[f32], b: &[f32], [_, inner, columns]: [usize; 3]) {
    for (row, to) in a.chunks(inner).zip(to.chunks_mut(columns)) {
        for (j, result) in to.iter_mut().enumerate() {
            *result = row.iter().enumerate().map(|(k, value)| value * b[k * columns + j]).sum();
        }
    }
}

/// None if the chip does not know the line.
unsafe fn run_line(line: &Line, operands: &[Operand]) -> Option<()> {
    let ([to, a, b], [rows, inner, columns]) = (line.places, line.sizes);
    let counts = match line.operation.as_str() {
        "mm" => [rows * columns, rows * inner, inner * columns],
        _ => [rows; 3],
    };
    let target = slice::from_raw_parts_mut(address(to, operands)? as *mut f32, counts[0]);
    let (a, b) = (numbers(a, operands, counts[1]), numbers(b, operands, counts[2]));
    let each = |(i, to): (usize, &mut f32), operation: &dyn Fn(usize) -> f32| *to = operation(i);
    let all = target.iter_mut().enumerate();
    match line.operation.as_str() {
        "mm" => multiply_matrices(target, a, b, line.sizes),
        "add" => all.for_each(|place| each(place, &|i| a[i] + b[i])),
        "mul" => all.for_each(|place| each(place, &|i| a[i] * b[i])),
        "relu" => all.for_each(|place| each(place, &|i| if a[i] < 0.0 { 0.0 } else { a[i] })), // NaN stays
        "sigmoid" => all.for_each(|place| each(place, &|i| 1.0 / (1.0 + (-a[i]).exp()))),
        _ => return None,
    }
    Some(())
}

unsafe extern "C" fn library_call(
    _stream: Handle,
    function: Handle,
    operands: *const Operand,
    count: u32,
) -> Status {
    let operands = slice::from_raw_parts(operands, count as usize);
    for line in &*(function as *const Vec<Line>) {
        if run_line(line, operands).is_none() {
            return fail(INTERNAL, "an executable has a line that mychip does not know");
        }
    }
    OK
}

// The chip has no functions but those that are loaded, and no programs.

unsafe extern "C" fn library_find(
    _device: Handle,
    _name: *const c_char,
    _operands: *const Operand,
    _count: u32,
    _function: *mut Handle,
) -> Status {
    fail(UNSUPPORTED, "mychip has no library")
}

fn no_kernels() -> Status {
    fail(UNSUPPORTED, "mychip has no kernels")
}

pub unsafe extern "C" fn program_build(
    _device: Handle,
    _source: *const c_char,
    _options: *const c_char,
    _program: *mut Handle,
) -> Status {
    no_kernels()
}

pub unsafe extern "C" fn program_load(
    _device: Handle,
    _binary: *const c_void,
    _bytes: usize,
    _program: *mut Handle,
) -> Status {
    no_kernels()
}

pub unsafe extern "C" fn program_binary(_program: Handle, _binary: *mut c_void, _bytes: *mut usize) -> Status {
    no_kernels()
}

pub unsafe extern "C" fn program_release(_program: Handle) -> Status {
    OK
}

pub unsafe extern "C" fn kernel_get(_program: Handle, _name: *const c_char, _kernel: *mut Handle) -> Status {
    no_kernels()
}

pub unsafe extern "C" fn launch(
    _stream: Handle,
    _kernel: Handle,
    _global: *const u64,
    _local: *const u32,
    _arguments: *const Argument,
    _argument_count: u32,
) -> Status {
    no_kernels()
}
