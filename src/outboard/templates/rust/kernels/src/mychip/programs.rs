//! Programs: built from source, loaded from binaries, and launched. Here the compiler is `c++` of the system.

use crate::{abi::*, fail};
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, process, ptr, slice};

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(library: *mut c_void) -> c_int;
    fn dlerror() -> *const c_char;
}

const RTLD_NOW: c_int = 2;
/// What OB_KERNEL of dialect.py begins with.
const MARK: &str = "[[mychip::kernel]]";

pub const FUNCTIONS: Functions = Functions { find: None, call: None, load: None, release: None };

struct Program {
    library: *mut c_void,
    binary: Vec<u8>,
}

/// What the device says of the code that it runs.
pub fn describe_code(properties: &mut Properties) {
    write_text(&mut properties.dialect, "mychip"); // dialect.py
    properties.execution = 2; // OB_EXECUTION_SIMT: many short work-items
    properties.max_work_group_size = 1; // of a group's work-items, which may wait for one another: here none
    properties.sub_group_size = 1;
    properties.local_memory = 32 << 10;
    properties.has_fp64 = 1;
    properties.has_int64_atomics = 1;
}

/// A folder for temporary files, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Folder> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("mychip-{}-{number}", process::id()));
        fs::create_dir(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Status and text of what went wrong.
type Failure = (Status, String);

fn no_room(error: std::io::Error) -> Failure {
    (INTERNAL, format!("no room for a program: {error}"))
}

/// Each kernel gets a function beside it that a launch can call: C++ knows the types of its parameters. A chip's
/// compiler knows them as well, and needs no such thing.
fn launchers(text: &str) -> String {
    let kernels = text.split(MARK).skip(1).filter_map(|part| part.split("void ").nth(1));
    let names = kernels.filter_map(|part| part.split(['(', ' ']).next());
    let launcher = |name| {
        format!(
            "\nextern \"C\" int launch_{name}(void** values, unsigned count, const unsigned long* groups) {{ \
             return mychip_launch(::{name}, values, count, groups); }}\n"
        )
    };
    names.map(launcher).collect()
}

fn run_compiler(arguments: &[&str], input: &Path, output: &Path) -> Result<(), Failure> {
    let mut command = Command::new("c++");
    let done = command.arg("-std=c++20").args(arguments).arg(input).arg("-o").arg(output).output();
    match done {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err((BUILD_FAILED, String::from_utf8_lossy(&done.stderr).into_owned())),
        Err(error) => Err((BUILD_FAILED, format!("there is no compiler: {error}"))),
    }
}

fn build(source: &[u8]) -> Result<Program, Failure> {
    let folder = Folder::new().map_err(no_room)?;
    let (text, whole) = (folder.0.join("text.cpp"), folder.0.join("whole.cpp"));
    let result = folder.0.join("program.so");
    fs::write(&text, source).map_err(no_room)?;
    run_compiler(&["-E"], &text, &whole)?;
    let mut expanded = fs::read_to_string(&whole).map_err(no_room)?;
    expanded.push_str(&launchers(&expanded));
    fs::write(&whole, expanded).map_err(no_room)?;
    let options = ["-O2", "-march=native", "-ffp-contract=off", "-w", "-shared", "-fPIC"];
    run_compiler(&options, &whole, &result)?;
    open(&result, fs::read(&result).map_err(no_room)?)
}

fn load(binary: &[u8]) -> Result<Program, Failure> {
    let folder = Folder::new().map_err(no_room)?;
    let path = folder.0.join("program.so");
    fs::write(&path, binary).map_err(no_room)?;
    open(&path, binary.to_vec())
}

fn open(path: &Path, binary: Vec<u8>) -> Result<Program, Failure> {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    let library = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
    if library.is_null() {
        let text = unsafe { CStr::from_ptr(dlerror()) };
        return Err((BUILD_FAILED, text.to_string_lossy().into_owned()));
    }
    Ok(Program { library, binary })
}

unsafe fn hand_over(made: Result<Program, Failure>, program: *mut Handle) -> Status {
    match made {
        Ok(made) => {
            *program = Box::into_raw(Box::new(made)) as Handle;
            OK
        }
        Err((status, text)) => fail(status, &text),
    }
}

pub unsafe extern "C" fn program_build(
    _device: Handle,
    source: *const c_char,
    _options: *const c_char,
    program: *mut Handle,
) -> Status {
    hand_over(build(CStr::from_ptr(source).to_bytes()), program)
}

pub unsafe extern "C" fn program_load(
    _device: Handle,
    binary: *const c_void,
    bytes: usize,
    program: *mut Handle,
) -> Status {
    let binary = if bytes == 0 { &[] } else { slice::from_raw_parts(binary.cast::<u8>(), bytes) };
    hand_over(load(binary), program)
}

pub unsafe extern "C" fn program_binary(program: Handle, binary: *mut c_void, bytes: *mut usize) -> Status {
    let made = &(*(program as *const Program)).binary;
    if !binary.is_null() {
        ptr::copy_nonoverlapping(made.as_ptr(), binary.cast::<u8>(), made.len());
    }
    *bytes = made.len();
    OK
}

pub unsafe extern "C" fn program_release(program: Handle) -> Status {
    dlclose(Box::from_raw(program as *mut Program).library);
    OK
}

pub unsafe extern "C" fn kernel_get(program: Handle, name: *const c_char, kernel: *mut Handle) -> Status {
    let symbol = [b"launch_", CStr::from_ptr(name).to_bytes_with_nul()].concat();
    *kernel = dlsym((*(program as *const Program)).library, symbol.as_ptr().cast()) as Handle;
    if *kernel == 0 {
        return fail(INVALID_ARGUMENT, "the program has no kernel of that name");
    }
    OK
}

type Launcher = unsafe extern "C" fn(*const *const c_void, c_uint, *const u64) -> c_int;

pub unsafe extern "C" fn launch(
    _stream: Handle,
    kernel: Handle,
    global: *const u64,
    _local: *const u32, // groups of one work-item: as many groups as work-items
    arguments: *const Argument,
    argument_count: u32,
) -> Status {
    let arguments = match argument_count {
        0 => &[],
        count => slice::from_raw_parts(arguments, count as usize),
    };
    let values: Vec<_> = arguments.iter().map(|argument| argument.value).collect();
    let launcher: Launcher = std::mem::transmute(kernel);
    match launcher(values.as_ptr(), argument_count, global) {
        0 => fail(INVALID_ARGUMENT, "the kernel has another number of arguments"),
        _ => OK,
    }
}
