/* What the files of the driver share. */
#pragma once

#include "outboard/driver.h"

#ifdef __cplusplus
extern "C" {
#else
#define thread_local _Thread_local
#endif

const ob_driver* outboard_driver(void);

#ifdef __cplusplus
}
#endif

/* Keeps the text for `last_error`, and returns the status. */
ob_status fail(ob_status status, const char* text);
/* What the device says of the code that it runs. */
void describe_code(ob_device_properties* properties);

ob_status program_build(ob_device device, const char* source, const char* options, ob_program* program);
ob_status program_load(ob_device device, const void* binary, size_t bytes, ob_program* program);
ob_status program_binary(ob_program program, void* binary, size_t* bytes);
ob_status program_release(ob_program program);
ob_status kernel_get(ob_program program, const char* name, ob_kernel* kernel);
ob_status launch(ob_stream stream, ob_kernel kernel, const uint64_t global[3], const uint32_t local[3],
                 const ob_argument* arguments, uint32_t argument_count);

ob_status library_find(ob_device device, const char* name, const ob_operand* operands, uint32_t count,
                       ob_function* function);
ob_status library_call(ob_stream stream, ob_function function, const ob_operand* operands, uint32_t count);
ob_status function_load(ob_device device, const void* bytes, size_t size, ob_function* function);
ob_status function_release(ob_function function);

#define MYCHIP_OPTIONAL_FUNCTIONS                                                             \
  .library_find = library_find, .library_call = library_call, .function_load = function_load, \
  .function_release = function_release

/* The host's address of device memory. */
static inline void* host(ob_ptr ptr) { return (void*)(uintptr_t)ptr; }
