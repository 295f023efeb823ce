/* SPDX-License-Identifier: Apache-2.0
 *
 * The C part of a driver that is written in Python, to be included by one file of C11:
 *
 *   #define OB_PYTHON_DRIVER "mychip"
 *   #include "outboard/python_driver.h"
 *
 * The library that is made of it lies in the folder of the package of that name. It starts a process that calls `serve`
 * of the package's module `driver`, and hands it through a socket what Outboard calls: `outboard new --language python`
 * writes both. The environment variable OUTBOARD_DRIVER_PYTHON says with which Python; else it is `python3`.
 *
 * A driver is called by threads that hold Python's lock and by threads that do not, and some of them hold locks of
 * Outboard's. In one process with the program, Python code could wait for a thread that waits for Python. Here it never
 * does, and a program without Python (outboard-run) has the device, too.
 */
#ifndef OUTBOARD_PYTHON_DRIVER_H_
#define OUTBOARD_PYTHON_DRIVER_H_

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "outboard/driver.h"

#ifndef OB_PYTHON_DRIVER
#error "OB_PYTHON_DRIVER is the name of the driver and of its Python package"
#endif
#define OB_NUMBER(handle) ((uint64_t)(uintptr_t)(handle))

struct call {
  const char* function; /* of the module */
  uint64_t count, numbers[4];
  const void* data;
  uint64_t bytes; /* of data */
  void* number;   /* where the answer goes if it is a number, of 64 bits */
  void* reply;    /* where it goes if it is data, of at most `room` bytes */
  uint64_t room;
};
/* What the process reads and writes, each with its data behind it. */
struct request {
  char function[24];
  uint64_t count, numbers[4], has_data, bytes;
};
struct answer {
  uint64_t status, number, bytes;
};

static _Thread_local char error[4096];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int channel = -1; /* of the socket, -1 once the driver has ended */
static pid_t owner;      /* a child that was forked gets a driver of its own */

static ob_status fail(ob_status status, const char* text) { return snprintf(error, sizeof(error), "%s", text), status; }

static void start(void) {
  extern char** environ;
  int ends[2];
  Dl_info self;
  owner = getpid();
  channel = -1;
  char* folder = dladdr((void*)&start, &self) != 0 ? realpath(self.dli_fname, NULL) : NULL;
  if (folder == NULL || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return free(folder);
  for (int up = 0; up < 2; ++up) *strrchr(folder, '/') = 0; /* to where the package is */
  char* python = getenv("OUTBOARD_DRIVER_PYTHON");
  char* program =
      "import sys; sys.path.insert(0, sys.argv.pop()); from " OB_PYTHON_DRIVER ".driver import serve; serve()";
  char* arguments[] = {python != NULL ? python : "python3", "-c", program, folder, NULL};
  pid_t child;
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, ends[1], 0);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP); /* Ctrl-C is for the program */
  if (posix_spawnp(&child, arguments[0], &files, &attributes, arguments, environ) == 0) {
    channel = ends[0];
  } else {
    close(ends[0]);
  }
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  close(ends[1]);
  free(folder);
}

static int move_bytes(int sends, void* data, uint64_t bytes) {
  while (bytes != 0) {
    const ssize_t moved = sends ? send(channel, data, bytes, MSG_NOSIGNAL) : recv(channel, data, bytes, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return 0;
    data = (char*)data + moved;
    bytes -= (uint64_t)moved;
  }
  return 1;
}

static ob_status exchange(const struct call* call) {
  struct request request = {"", call->count, {0}, call->data != NULL, call->bytes};
  struct answer answer;
  strncpy(request.function, call->function, sizeof(request.function) - 1);
  memcpy(request.numbers, call->numbers, sizeof(request.numbers));
  if (channel < 0 || !move_bytes(1, &request, sizeof(request)) || !move_bytes(1, (void*)call->data, call->bytes) ||
      !move_bytes(0, &answer, sizeof(answer)))
    return OB_DEVICE_LOST;
  char* reply = answer.status == OB_OK ? call->reply : error;
  if (answer.bytes > (answer.status == OB_OK ? call->room : sizeof(error)) || !move_bytes(0, reply, answer.bytes))
    return OB_DEVICE_LOST;
  if (call->number != NULL && answer.status == OB_OK) memcpy(call->number, &answer.number, sizeof(answer.number));
  return (ob_status)answer.status;
}

static ob_status ask(struct call call) {
  pthread_mutex_lock(&lock);
  if (owner != getpid()) start();
  const ob_status status = exchange(&call);
  if (status == OB_DEVICE_LOST && channel >= 0) close(channel), channel = -1;
  pthread_mutex_unlock(&lock);
  return status == OB_DEVICE_LOST ? fail(status, "the process of the driver " OB_PYTHON_DRIVER " has ended") : status;
}

/* The driver says whether it is done, and other threads' calls get through meanwhile. */
static ob_status wait_for(const char* function, uint64_t handle, int blocking) {
  const struct timespec pause = {0, 50000};
  ob_status status;
  while ((status = ask((struct call){function, 1, {handle}})) == OB_NOT_READY && blocking) nanosleep(&pause, NULL);
  return status;
}

static const char* last_error(void) { return error; }
static ob_status device_count(uint32_t* count) {
  uint64_t found = 0;
  const ob_status status = ask((struct call){"device_count", .number = &found});
  return *count = (uint32_t)found, status;
}
static ob_status device_properties(ob_device device, ob_device_properties* all) {
  const size_t size = all->struct_size; /* a caller may know fewer than the driver */
  return ask((struct call){"device_properties", 2, {OB_NUMBER(device), size}, .reply = all, .room = size});
}
static ob_status stream_wait(ob_stream stream, int blocking) {
  return wait_for("stream_wait", OB_NUMBER(stream), blocking);
}
static ob_status event_wait(ob_event event, int blocking) { return wait_for("event_wait", OB_NUMBER(event), blocking); }
static ob_status copy(ob_stream stream, ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  if (kind == OB_HOST_TO_DEVICE)
    return ask((struct call){"write", 2, {OB_NUMBER(stream), dst}, .data = (void*)(uintptr_t)src, .bytes = bytes});
  if (kind == OB_DEVICE_TO_HOST)
    return ask(
        (struct call){"read", 3, {OB_NUMBER(stream), src, bytes}, .reply = (void*)(uintptr_t)dst, .room = bytes});
  return ask((struct call){"copy", 4, {OB_NUMBER(stream), dst, src, bytes}});
}
static ob_status fill(ob_stream stream, ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes) {
  return ask((struct call){"fill", 3, {OB_NUMBER(stream), dst, bytes}, .data = pattern, .bytes = pattern_size});
}
static ob_status program_build(ob_device device, const char* source, const char* options, ob_program* program) {
  (void)options;
  return ask((struct call){"program_build", 1, {OB_NUMBER(device)}, source, strlen(source), program});
}
static ob_status program_binary(ob_program program, void* binary, size_t* bytes) {
  const size_t room = binary != NULL ? *bytes : 0;
  const ob_status status = ask((struct call){"program_size", 1, {OB_NUMBER(program)}, .number = bytes});
  if (status != OB_OK || binary == NULL) return status;
  return ask((struct call){"program_binary", 1, {OB_NUMBER(program)}, .reply = binary, .room = room});
}
static ob_status kernel_get(ob_program program, const char* name, ob_kernel* kernel) {
  return ask((struct call){"kernel_get", 1, {OB_NUMBER(program)}, name, strlen(name), kernel});
}
/* Three numbers for the work-items, and 16 bytes for each argument. */
static ob_status launch(ob_stream stream, ob_kernel kernel, const uint64_t global[3], const uint32_t local[3],
                        const ob_argument* arguments, uint32_t argument_count) {
  char data[24 + 16 * 128] = {0};
  (void)local;
  if (argument_count > 128) return fail(OB_INVALID_ARGUMENT, "a kernel has at most 128 arguments");
  memcpy(data, global, 24);
  for (uint32_t i = 0; i < argument_count; ++i) {
    const uint32_t size = arguments[i].is_pointer ? sizeof(ob_ptr) : arguments[i].size;
    if (size > 16) return fail(OB_INVALID_ARGUMENT, "an argument has at most 16 bytes");
    memcpy(data + 24 + 16 * i, arguments[i].value, size);
  }
  return ask((struct call){"launch", 2, {OB_NUMBER(stream), OB_NUMBER(kernel)}, data, 24 + 16 * argument_count});
}
static ob_status library_find(ob_device device, const char* name, const ob_operand* operands, uint32_t count,
                              ob_function* function) {
  (void)device, (void)name, (void)operands, (void)count, (void)function;
  return fail(OB_UNSUPPORTED, OB_PYTHON_DRIVER " has no library");
}
/* The addresses of all operands. */
static ob_status library_call(ob_stream stream, ob_function function, const ob_operand* operands, uint32_t count) {
  uint64_t addresses[1024];
  if (count > 1024) return fail(OB_INVALID_ARGUMENT, "an executable has at most 1024 operands");
  for (uint32_t i = 0; i < count; ++i) addresses[i] = operands[i].data;
  return ask((struct call){"library_call", 2, {OB_NUMBER(stream), OB_NUMBER(function)}, addresses, 8 * count});
}

/* The rest of the functions differ in their names alone. */
#define TAKES_HANDLE(name, type) \
  static ob_status name(type handle) { return ask((struct call){#name, 1, {OB_NUMBER(handle)}}); }
TAKES_HANDLE(stream_destroy, ob_stream)
TAKES_HANDLE(event_destroy, ob_event)
TAKES_HANDLE(program_release, ob_program)
TAKES_HANDLE(function_release, ob_function)
#define TAKES_TWO(name, first, second) \
  static ob_status name(first a, second b) { return ask((struct call){#name, 2, {OB_NUMBER(a), OB_NUMBER(b)}}); }
TAKES_TWO(memory_free, ob_device, ob_ptr)
TAKES_TWO(stream_wait_event, ob_stream, ob_event)
TAKES_TWO(event_record, ob_event, ob_stream)
#define MAKES(name, from, made) \
  static ob_status name(from a, made* b) { return ask((struct call){#name, 1, {OB_NUMBER(a)}, .number = b}); }
MAKES(device_open, uint32_t, ob_device)
MAKES(stream_create, ob_device, ob_stream)
MAKES(event_create, ob_device, ob_event)
#define MAKES_OF_TWO(name, first, second, made)                                     \
  static ob_status name(first a, second b, made* c) {                               \
    return ask((struct call){#name, 2, {OB_NUMBER(a), OB_NUMBER(b)}, .number = c}); \
  }
MAKES_OF_TWO(memory_alloc, ob_device, uint64_t, ob_ptr)
MAKES_OF_TWO(event_elapsed, ob_event, ob_event, int64_t)
#define LOADS(name, made)                                                                  \
  static ob_status name(ob_device a, const void* data, size_t bytes, made* b) {            \
    return ask((struct call){#name, 1, {OB_NUMBER(a)}, bytes != 0 ? data : "", bytes, b}); \
  }
LOADS(program_load, ob_program)
LOADS(function_load, ob_function)

const ob_driver* outboard_driver(void) {
  static const ob_driver table = {.struct_size = sizeof(ob_driver),
                                  .abi_major = OB_ABI_MAJOR,
                                  .abi_minor = OB_ABI_MINOR,
                                  .name = OB_PYTHON_DRIVER,
#define OB_REQUIRED(name) .name = name,
#define OB_OPTIONAL(name)
#include "outboard/functions.def"
                                  .library_find = library_find,
                                  .library_call = library_call,
                                  .function_load = function_load,
                                  .function_release = function_release};
  return &table;
}

#endif /* OUTBOARD_PYTHON_DRIVER_H_ */
