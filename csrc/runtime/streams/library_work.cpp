// SPDX-License-Identifier: Apache-2.0
#include "runtime/streams/library_work.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/driver_call.h"
#include "runtime/programs/loaded_functions.h"

namespace outboard {
namespace {

/// What drivers may ask of an address, at most.
constexpr ob_ptr kAlignment = 256;

ob_ptr alignment_of(ob_ptr address) {
  return address == 0 ? kAlignment : std::min(address & (~address + 1), kAlignment);
}

/// Mixes numbers into one (the finalizer of splitmix64, Steele, Lea and Flood, 2014).
class Mixed {
 public:
  void add(uint64_t number) {
    value_ += number + 0x9e3779b97f4a7c15;
    value_ = (value_ ^ (value_ >> 30)) * 0xbf58476d1ce4e5b9;
    value_ = (value_ ^ (value_ >> 27)) * 0x94d049bb133111eb;
    value_ ^= value_ >> 31;
  }
  void add(const int64_t* numbers, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) add(static_cast<uint64_t>(numbers[i]));
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace

uint64_t LibraryWork::key() const {
  Mixed mixed;
  for (const ob_operand& operand : operands_) {
    mixed.add(operand.kind);
    mixed.add(uint64_t{operand.dtype} << 32 | operand.count);
    mixed.add(static_cast<uint64_t>(operand.integer));
    uint64_t number = 0;
    std::memcpy(&number, &operand.number, sizeof(number));
    mixed.add(number);
    if (operand.sizes != nullptr) mixed.add(operand.sizes, operand.count);
    if (operand.strides != nullptr) mixed.add(operand.strides, operand.count);
    if (operand.kind == OB_OPERAND_TENSOR) mixed.add(alignment_of(operand.data));
  }
  return mixed.value();
}

bool LibraryWork::find(const ob_driver& driver, ob_device device) {
  if (driver.library_find == nullptr || driver.library_call == nullptr) return false;
  std::vector<ob_operand> described = operands_;
  for (ob_operand& operand : described) {
    if (operand.kind == OB_OPERAND_TENSOR) operand.data = alignment_of(operand.data);  // nobody is to look there yet
  }
  const ob_status status =
      driver.library_find(device, name_.c_str(), described.data(), static_cast<uint32_t>(described.size()), &function_);
  if (status != OB_UNSUPPORTED) check(driver, status, "looking for a library function");
  return status == OB_OK;
}

void LibraryWork::set_function(std::shared_ptr<const LoadedFunction> loaded) {
  function_ = loaded->handle();
  loaded_ = std::move(loaded);
}

}  // namespace outboard
