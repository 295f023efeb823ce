/* What a chip has that runs executables. */
#pragma once

#include "outboard/driver.h"

ob_status library_find(ob_device device, const char* name, const ob_operand* operands, uint32_t count,
                       ob_function* function);
ob_status library_call(ob_stream stream, ob_function function, const ob_operand* operands, uint32_t count);
ob_status function_load(ob_device device, const void* bytes, size_t size, ob_function* function);
ob_status function_release(ob_function function);

#define MYCHIP_OPTIONAL_FUNCTIONS                                                             \
  .library_find = library_find, .library_call = library_call, .function_load = function_load, \
  .function_release = function_release
