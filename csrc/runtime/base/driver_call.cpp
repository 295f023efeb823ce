// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/driver_call.h"

#include <iterator>

namespace outboard {
namespace {

/// What to do about a lost device, as the end of a sentence.
std::string advice(const DeviceDriver& driver) {
  std::string text = ". What was in its memory is gone, and nothing can run on it any more in this process: ";
  if (driver.device_reset != nullptr) text += "reset() of the device's module makes it as new. Else, ";
  return text +
         "end the process, go on from the last checkpoint in a new one, and look into the system's log for what "
         "happened to the device. Other devices are not concerned.";
}

constexpr const char* kReset =
    "the device was reset: what was in its memory then, and its events, graphs and communicators, are lost. Make them "
    "again, such as tensors from the last checkpoint";

constexpr size_t kPlaces[] = {
#define OB_FUNCTION(name) offsetof(ob_driver, name),
#include "outboard/functions.def"
};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(kPlaces); ++i) {
    if (kPlaces[i] != offsetof(ob_driver, last_error) + i * sizeof(void*)) return false;
  }
  return true;
}
static_assert(in_order() && kPlaces[0] + sizeof(kPlaces) == sizeof(ob_driver), "functions.def has all of driver.h's");

/// What every driver must have and this one lacks, separated by commas.
std::string missing(const ob_driver& driver) {
  std::string names = driver.name == nullptr ? "name" : "";
#define OB_REQUIRED(function) \
  if (driver.function == nullptr) names += (names.empty() ? "" : ", ") + std::string(#function);
#define OB_OPTIONAL(function)
#include "outboard/functions.def"
  return names;
}

}  // namespace

std::string misfit(const ob_driver& driver) {
  if (driver.abi_major != OB_ABI_MAJOR) {
    return "was built for version " + std::to_string(driver.abi_major) +
           " of the driver interface, and this is Outboard " + "with version " + std::to_string(OB_ABI_MAJOR) +
           ": build it with the driver.h of this Outboard";
  }
  const std::string names = missing(whole_table(driver));
  return names.empty() ? "" : "lacks what every driver must have: " + names;
}

void refuse_in_forked_child() {
  if (!in_forked_child.load(std::memory_order_relaxed)) return;
  throw ForkError(
      "Cannot re-initialize the device in forked subprocess. To use the device with multiprocessing, you must use the "
      "'spawn' start method");
}

void throw_failure(const ob_driver& driver, ob_status status, const char* what) {
  const char* text = driver.last_error();
  if (text == nullptr) text = "no details";
  if (status == OB_INDEX_ERROR) throw IndexError(std::string(text) + kFoundLate);
  if (status == OB_VALUE_ERROR) throw Error(status, std::string(text) + kFoundLate);
  const std::string message = std::string(what) + " failed: " + text;
  if (status == OB_OUT_OF_MEMORY) throw OutOfMemoryError(message);
  throw Error(status, message);
}

void throw_failure(const DeviceDriver& driver, ob_status status, const char* what) {
  if (status != OB_DEVICE_LOST) throw_failure(static_cast<const ob_driver&>(driver), status, what);
  driver.lose();
  if (driver.was_reset()) throw Error(OB_DEVICE_LOST, kReset);
  const char* text = driver.last_error();
  throw Error(OB_DEVICE_LOST, std::string("the device was lost: ") + what +
                                  " failed: " + (text != nullptr ? text : "no details") + advice(driver));
}

void refuse_if_unusable(const DeviceDriver& driver) {
  refuse_in_forked_child();
  if (!driver.lost()) return;
  throw Error(OB_DEVICE_LOST, driver.was_reset() ? kReset : "the device was lost earlier" + advice(driver));
}

}  // namespace outboard
