// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>

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

/// A function of the table: no exception leaves it. `fail` keeps the text for `last_error` and returns the status.
template <auto fail, auto function>
struct Guarded;

template <auto fail, typename... Arguments, ob_status (*function)(Arguments...)>
struct Guarded<fail, function> {
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

}  // namespace outboard::common
