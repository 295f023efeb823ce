# SPDX-License-Identifier: Apache-2.0
# find_package(outboard): the target outboard::runner, the library that runs exported models.
if(TARGET outboard::runner)
  return()
endif()
get_filename_component(outboard_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
add_library(outboard::runner SHARED IMPORTED)
set_target_properties(outboard::runner PROPERTIES
  IMPORTED_LOCATION "${outboard_root}/lib/liboutboard_runner.so"
  INTERFACE_INCLUDE_DIRECTORIES "${outboard_root}/include")
