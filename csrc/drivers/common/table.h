// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/error.h"
#include "outboard/driver.h"

/// What the tables of drivers written in C++ have in common.
namespace outboard::common {

/// A compiler refused a program; the text is its log.
class BuildError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Fills a text of `ob_device_properties`; what does not fit is cut off.
template <size_t size>
void put_text(char (&target)[size], const std::string& text) {
  std::snprintf(target, size, "%s", text.c_str());
}

/// What sensors say of which there are none.
inline ob_sensors unknown_sensors() {
  return {sizeof(ob_sensors), OB_NOT_KNOWN, OB_NOT_KNOWN, OB_NOT_KNOWN, OB_NOT_KNOWN, OB_NOT_KNOWN, OB_NOT_KNOWN};
}

/// Fills what the caller's struct, which may be another version's, has of a struct like this.
template <typename Struct>
void give(const Struct& from, Struct& to) {
  const size_t size = to.struct_size;
  std::memcpy(static_cast<void*>(&to), &from, std::min(size, sizeof(from)));
  to.struct_size = size;
}

/// The optional functions that a driver does not have: a name that it does not declare is found here.
namespace absent {
#define OB_REQUIRED(name)
#define OB_OPTIONAL(name) inline constexpr std::nullptr_t name = nullptr;
#include "outboard/functions.def"
}  // namespace absent

/// A function that returns a status: no exception leaves it, and its text is kept for `last_error`.
template <auto function>
struct Guarded;

template <typename... Arguments, ob_status (*function)(Arguments...)>
struct Guarded<function> {
  static ob_status call(Arguments... arguments) noexcept {
    try {
      return function(arguments...);
    } catch (const std::bad_alloc&) {
      return fail(OB_OUT_OF_MEMORY, "out of memory");
    } catch (const BuildError& error) {
      return fail(OB_BUILD_FAILED, error.what());
    } catch (const std::invalid_argument& error) {
      return fail(OB_INVALID_ARGUMENT, error.what());
    } catch (const std::exception& error) {
      return fail(OB_INTERNAL, error.what());
    }
  }
};

/// Puts a function into its place in the table, unless it is absent.
template <auto function, typename Result, typename... Arguments>
constexpr void offer(Result (*&slot)(Arguments...)) {
  if constexpr (function == nullptr)
    return;
  else if constexpr (std::is_same_v<Result, ob_status>)
    slot = Guarded<function>::call;
  else
    slot = function;
}

/// A table without functions. A driver fills it with what it declares under the contract's names:
///
///     using namespace outboard::common::absent;
///     #define OB_FUNCTION(name) outboard::common::offer<name>(driver.name);
///     #include "outboard/functions.def"
constexpr ob_driver new_table(const char* name) {
  ob_driver driver{};
  driver.struct_size = sizeof(ob_driver);
  driver.abi_major = OB_ABI_MAJOR;
  driver.abi_minor = OB_ABI_MINOR;
  driver.name = name;
  return driver;
}

}  // namespace outboard::common
