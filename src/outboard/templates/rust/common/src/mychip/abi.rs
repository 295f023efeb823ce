//! What outboard/driver.h declares, as far as this driver has it.

use std::ffi::{c_char, c_int, c_void};

/// `ob_status`.
pub type Status = c_int;
pub const OK: Status = 0;
pub const INVALID_ARGUMENT: Status = 2;
pub const OUT_OF_MEMORY: Status = 3;
pub const BUILD_FAILED: Status = 5;
pub const INTERNAL: Status = 7;

/// `ob_device`, `ob_stream` and so on: addresses, or any number but 0.
pub type Handle = usize;
/// `ob_ptr`.
pub type Address = u64;

/// `ob_device_properties`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    pub struct_size: usize,
    pub name: [c_char; 256],
    pub vendor: [c_char; 128],
    pub driver_version: [c_char; 256],
    pub dialect: [c_char; 32],
    pub cache_key: [c_char; 256],
    pub kind: c_int,
    pub compute_units: u32,
    pub max_work_group_size: u32,
    pub sub_group_size: u32,
    pub vector_width: u32,
    pub total_memory: u64,
    pub max_allocation: u64,
    pub local_memory: u64,
    pub alignment: u64,
    pub host_accessible: u8,
    pub has_fp16: u8,
    pub has_fp64: u8,
    pub has_int64_atomics: u8,
    pub serial_builds: u8,
    pub max_argument_bytes: u32,
    pub execution: u32,
    pub near_cache: u64,
    pub last_cache: u64,
    pub library: [c_char; 128],
    pub compiler: [c_char; 128],
    pub static_sizes: u8,
    pub takes_host_memory: u8,
    pub matrix_units: u8,
}

/// Puts a text into a field of `Properties`.
pub fn write_text(field: &mut [c_char], text: &str) {
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// `ob_argument`.
#[repr(C)]
pub struct Argument {
    pub is_pointer: u32,
    pub size: u32,
    pub value: *const c_void,
}

/// `ob_operand`.
#[repr(C)]
pub struct Operand {
    pub kind: u32,
    pub dtype: u32,
    pub count: u32,
    pub is_result: u32,
    pub data: Address,
    pub sizes: *const i64,
    pub strides: *const i64,
    pub integer: i64,
    pub number: f64,
}

type FindFunction =
    unsafe extern "C" fn(Handle, *const c_char, *const Operand, u32, *mut Handle) -> Status;
type CallFunction = unsafe extern "C" fn(Handle, Handle, *const Operand, u32) -> Status;
type LoadFunction = unsafe extern "C" fn(Handle, *const c_void, usize, *mut Handle) -> Status;
type ReleaseFunction = unsafe extern "C" fn(Handle) -> Status;

/// What a driver has of functions, if it has any.
pub struct Functions {
    pub find: Option<FindFunction>,
    pub call: Option<CallFunction>,
    pub load: Option<LoadFunction>,
    pub release: Option<ReleaseFunction>,
}

pub const ABI_MAJOR: u32 = 1;
pub const ABI_MINOR: u32 = 10;

/// `ob_driver`, up to what its minor version 10 added.
#[repr(C)]
pub struct Driver {
    pub struct_size: usize,
    pub abi_major: u32,
    pub abi_minor: u32,
    pub name: *const c_char,
    pub last_error: extern "C" fn() -> *const c_char,
    pub device_count: unsafe extern "C" fn(*mut u32) -> Status,
    pub device_open: unsafe extern "C" fn(u32, *mut Handle) -> Status,
    pub device_properties: unsafe extern "C" fn(Handle, *mut Properties) -> Status,
    pub memory_alloc: unsafe extern "C" fn(Handle, u64, *mut Address) -> Status,
    pub memory_free: unsafe extern "C" fn(Handle, Address) -> Status,
    pub stream_create: unsafe extern "C" fn(Handle, *mut Handle) -> Status,
    pub stream_destroy: extern "C" fn(Handle) -> Status,
    pub stream_wait: extern "C" fn(Handle, c_int) -> Status,
    pub stream_wait_event: extern "C" fn(Handle, Handle) -> Status,
    pub event_create: unsafe extern "C" fn(Handle, *mut Handle) -> Status,
    pub event_destroy: unsafe extern "C" fn(Handle) -> Status,
    pub event_record: unsafe extern "C" fn(Handle, Handle) -> Status,
    pub event_wait: extern "C" fn(Handle, c_int) -> Status,
    pub event_elapsed: unsafe extern "C" fn(Handle, Handle, *mut i64) -> Status,
    pub copy: unsafe extern "C" fn(Handle, c_int, u64, u64, u64) -> Status,
    pub fill: unsafe extern "C" fn(Handle, Address, *const c_void, u32, u64) -> Status,
    pub program_build:
        unsafe extern "C" fn(Handle, *const c_char, *const c_char, *mut Handle) -> Status,
    pub program_load: unsafe extern "C" fn(Handle, *const c_void, usize, *mut Handle) -> Status,
    pub program_binary: unsafe extern "C" fn(Handle, *mut c_void, *mut usize) -> Status,
    pub program_release: unsafe extern "C" fn(Handle) -> Status,
    pub kernel_get: unsafe extern "C" fn(Handle, *const c_char, *mut Handle) -> Status,
    pub launch: unsafe extern "C" fn(
        Handle,
        Handle,
        *const u64,
        *const u32,
        *const Argument,
        u32,
    ) -> Status,
    pub memory_info_to_kernel_properties: [usize; 12], // 0: Outboard does without
    pub library_find: Option<FindFunction>,
    pub library_call: Option<CallFunction>,
    pub collectives: [usize; 7],
    pub function_load: Option<LoadFunction>,
    pub function_release: Option<ReleaseFunction>,
}

// It is written once, by the compiler.
unsafe impl Sync for Driver {}
