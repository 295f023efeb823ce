//! The driver of mychip: what Outboard calls, as outboard/driver.h says.
//!
//! As it stands, the chip is the processor: memory is the host's, and a call has done its work when it returns. Replace
//! a part at a time by your hardware's, and try each with
//!
//!   outboard conform --driver mychip --level LEVEL_OF_KIND

mod abi;
mod CODE_OF_KIND;

use abi::*;
use std::alloc::{alloc, dealloc, Layout};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void, CString};
use std::sync::{LazyLock, Mutex};
use std::time::Instant;

const DEVICE: Handle = 1;
const STREAM: Handle = 1;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
static ALLOCATIONS: LazyLock<Mutex<HashMap<Address, Layout>>> = LazyLock::new(Mutex::default);

/// Keeps the text for `last_error`, and returns the status.
pub fn fail(status: Status, text: &str) -> Status {
    ERROR.set(CString::new(text.replace('\0', " ")).unwrap_or_default());
    status
}

// ---- devices ----

extern "C" fn last_error() -> *const c_char {
    ERROR.with_borrow(|text| text.as_ptr())
}

unsafe extern "C" fn device_count(count: *mut u32) -> Status {
    *count = 1; // 0 where there is no hardware; last_error then says what is missing
    OK
}

unsafe extern "C" fn device_open(index: u32, device: *mut Handle) -> Status {
    if index != 0 {
        return fail(INVALID_ARGUMENT, "there is one device, 0");
    }
    *device = DEVICE;
    OK
}

unsafe extern "C" fn device_properties(_device: Handle, properties: *mut Properties) -> Status {
    let mut all: Properties = std::mem::zeroed();
    write_text(&mut all.name, "mychip");
    write_text(&mut all.vendor, "its maker");
    write_text(&mut all.driver_version, "0.1");
    write_text(&mut all.cache_key, "mychip-0.1-1"); // change it when programs made before are no longer valid
    all.kind = 2; // OB_DEVICE_ACCELERATOR
    all.compute_units = 1;
    all.vector_width = 1;
    all.total_memory = 1 << 32;
    all.alignment = 64;
    all.host_accessible = 1; // 0 on a device with a memory of its own
    CODE_OF_KIND::describe_code(&mut all);
    all.struct_size = *properties.cast::<usize>(); // a caller may know fewer of them
    let bytes = all.struct_size.min(size_of::<Properties>());
    std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), properties.cast::<u8>(), bytes);
    OK
}

// ---- memory ----

unsafe extern "C" fn memory_alloc(_device: Handle, bytes: u64, address: *mut Address) -> Status {
    let layout = Layout::from_size_align(bytes as usize, 64);
    let made = match layout {
        Ok(layout) if bytes <= 1 << 32 => alloc(layout),
        _ => std::ptr::null_mut(),
    };
    if made.is_null() {
        return fail(OUT_OF_MEMORY, "no memory is left");
    }
    *address = made as Address;
    ALLOCATIONS.lock().unwrap().insert(*address, layout.unwrap());
    OK
}

unsafe extern "C" fn memory_free(_device: Handle, address: Address) -> Status {
    match ALLOCATIONS.lock().unwrap().remove(&address) {
        Some(layout) => dealloc(address as *mut u8, layout),
        None => return fail(INVALID_ARGUMENT, "there is no memory at this address"),
    }
    OK
}

// ---- streams and events: all work is done when its call returns, so there is nothing to wait for ----

unsafe extern "C" fn stream_create(_device: Handle, stream: *mut Handle) -> Status {
    *stream = STREAM;
    OK
}
extern "C" fn stream_destroy(_stream: Handle) -> Status {
    OK
}
extern "C" fn stream_wait(_stream: Handle, _blocking: c_int) -> Status {
    OK
}
extern "C" fn stream_wait_event(_stream: Handle, _event: Handle) -> Status {
    OK
}

/// An event is the address of its nanoseconds.
unsafe extern "C" fn event_create(_device: Handle, event: *mut Handle) -> Status {
    *event = Box::into_raw(Box::new(0i64)) as Handle;
    OK
}
unsafe extern "C" fn event_destroy(event: Handle) -> Status {
    drop(Box::from_raw(event as *mut i64));
    OK
}
unsafe extern "C" fn event_record(event: Handle, _stream: Handle) -> Status {
    *(event as *mut i64) = START.elapsed().as_nanos() as i64;
    OK
}
extern "C" fn event_wait(_event: Handle, _blocking: c_int) -> Status {
    OK
}
unsafe extern "C" fn event_elapsed(start: Handle, end: Handle, nanoseconds: *mut i64) -> Status {
    *nanoseconds = *(end as *const i64) - *(start as *const i64);
    OK
}

// ---- data ----

unsafe extern "C" fn copy(_stream: Handle, _kind: c_int, to: u64, from: u64, bytes: u64) -> Status {
    std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize);
    OK
}

unsafe extern "C" fn fill(
    _stream: Handle,
    to: Address,
    pattern: *const c_void,
    pattern_size: u32,
    bytes: u64,
) -> Status {
    let pattern = std::slice::from_raw_parts(pattern.cast::<u8>(), pattern_size as usize);
    let target = std::slice::from_raw_parts_mut(to as *mut u8, bytes as usize);
    for part in target.chunks_exact_mut(pattern.len()) {
        part.copy_from_slice(pattern);
    }
    OK
}

// ---- what Outboard asks for ----

#[no_mangle]
pub extern "C" fn outboard_driver() -> *const Driver {
    static TABLE: Driver = Driver {
        struct_size: size_of::<Driver>(),
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        name: c"mychip".as_ptr(),
        last_error,
        device_count,
        device_open,
        device_properties,
        memory_alloc,
        memory_free,
        stream_create,
        stream_destroy,
        stream_wait,
        stream_wait_event,
        event_create,
        event_destroy,
        event_record,
        event_wait,
        event_elapsed,
        copy,
        fill,
        program_build: CODE_OF_KIND::program_build,
        program_load: CODE_OF_KIND::program_load,
        program_binary: CODE_OF_KIND::program_binary,
        program_release: CODE_OF_KIND::program_release,
        kernel_get: CODE_OF_KIND::kernel_get,
        launch: CODE_OF_KIND::launch,
        memory_info_to_kernel_properties: [0; 12],
        library_find: CODE_OF_KIND::FUNCTIONS.find,
        library_call: CODE_OF_KIND::FUNCTIONS.call,
        collectives: [0; 7],
        function_load: CODE_OF_KIND::FUNCTIONS.load,
        function_release: CODE_OF_KIND::FUNCTIONS.release,
    };
    &TABLE
}
