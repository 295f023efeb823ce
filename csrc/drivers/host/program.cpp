// SPDX-License-Identifier: Apache-2.0
#include "host/program.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "common/floating_point.h"
#include "host/work_items.h"
#include "runtime/base/sha256.h"

namespace outboard::host {
namespace {

// A binary is a line with the format's name, a line with the checksum of all that follows, a line with what it needs, a
// line for each kernel, an empty line and the library.
constexpr std::string_view kFormat = "outboard host program 2\n";
constexpr size_t kDigits = 64;

std::string describe(const KernelInterface& kernel) {
  std::ostringstream text;
  text << kernel.name << ' ' << kernel.has_barriers << ' ' << kernel.local_bytes;
  for (const uint32_t size : kernel.required_local_size) text << ' ' << size;
  text << ' ' << kernel.value_bytes.size();
  for (const uint32_t bytes : kernel.value_bytes) text << ' ' << bytes;
  return text.str() + "\n";
}

KernelInterface read_description(const std::string& line) {
  constexpr size_t kMostArguments = 4096;
  std::istringstream text(line);
  KernelInterface kernel;
  size_t count = 0;
  text >> kernel.name >> kernel.has_barriers >> kernel.local_bytes;
  for (uint32_t& size : kernel.required_local_size) text >> size;
  text >> count;
  if (!text || count > kMostArguments) throw std::invalid_argument("a damaged program of the host driver");
  kernel.value_bytes.resize(count);
  for (uint32_t& bytes : kernel.value_bytes) text >> bytes;
  if (!text) throw std::invalid_argument("a damaged program of the host driver");
  return kernel;
}

std::string to_binary(const Code& code) {
  std::string content = code.needs + "\n";
  for (const KernelInterface& kernel : code.kernels) content += describe(kernel);
  content += "\n" + code.library;
  return std::string(kFormat) + sha256_hex(content) + "\n" + content;
}

Code from_binary(std::string_view binary) {
  const size_t start = kFormat.size() + kDigits + 1;
  if (binary.size() < start || binary.substr(0, kFormat.size()) != kFormat) {
    throw std::invalid_argument("not a program of the host driver");
  }
  const std::string content(binary.substr(start));
  if (sha256_hex(content) + "\n" != binary.substr(kFormat.size(), kDigits + 1)) {
    throw std::invalid_argument("a damaged program of the host driver");
  }
  Code code;
  std::istringstream lines(content);
  std::getline(lines, code.needs);
  size_t read = code.needs.size() + 1;
  for (std::string line; std::getline(lines, line) && !line.empty(); read += line.size() + 1) {
    code.kernels.push_back(read_description(line));
  }
  code.library = content.substr(std::min(read + 1, content.size()));
  return code;
}

/// An argument, by its bytes; 0 for pointers.
std::string kind_of(uint32_t bytes) {
  return bytes == 0 ? "a pointer" : "a number of " + std::to_string(bytes) + " bytes";
}

}  // namespace

void Kernel::choose_local_size(uint32_t local[3]) const {
  if (local[0] != 0) return;
  for (int i = 0; i < 3; ++i) local[i] = std::max(interface_.required_local_size[i], 1u);
}

std::string Kernel::problem_with(const ob_launch& launch, const uint32_t local[3]) const {
  const std::string who = "kernel " + interface_.name;
  uint64_t items = 1;
  for (int i = 0; i < 3; ++i) {
    const uint32_t required = interface_.required_local_size[i];
    if (required != 0 && local[i] != required) return who + " was built for another local size";
    if (local[i] == 0 || launch.global[i] % local[i] != 0)
      return who + ": the local size does not divide the global one";
    items *= local[i];
    if (items > kMostWorkItems) return who + ": work-groups have " + std::to_string(kMostWorkItems) + " items at most";
  }
  const std::vector<uint32_t>& wanted = interface_.value_bytes;
  if (launch.argument_count != wanted.size()) {
    return who + " takes " + std::to_string(wanted.size()) + " arguments, and was given " +
           std::to_string(launch.argument_count);
  }
  for (uint32_t i = 0; i < launch.argument_count; ++i) {
    const ob_argument& argument = launch.arguments[i];
    const uint32_t given = argument.is_pointer != 0 ? 0 : argument.size;
    if ((argument.is_pointer != 0) == (wanted[i] == 0) && given == wanted[i]) continue;
    return who + ": argument " + std::to_string(i) + " is " + kind_of(wanted[i]) + ", and was given " + kind_of(given);
  }
  return {};
}

uint64_t Kernel::expected_nanoseconds(const uint64_t global[3], const uint32_t local[3]) const {
  uint64_t groups = 1;
  for (int i = 0; i < 3; ++i) groups *= common::group_count(global[i], std::max(local[i], 1u));
  return time_.expected(groups);
}

Launch::Launch(Kernel& kernel, const ob_launch& launch, const uint32_t local[3], uint32_t sub_group_size)
    : kernel_(kernel), arguments_(launch.arguments) {
  item_.sub_group_size = sub_group_size;
  item_.dimensions = launch.global[2] > 1 ? 3 : launch.global[1] > 1 ? 2 : 1;
  for (int i = 0; i < 3; ++i) {
    item_.local_size[i] = local[i];
    item_.group_count[i] = common::group_count(launch.global[i], local[i]);
    groups_ *= item_.group_count[i];
    items_ *= local[i];
  }
}

common::GroupLaunch Launch::groups() const { return {{groups_, run_part, this, 0}, &kernel_.time_}; }

/// Makes the calling thread ready to have work-items take turns.
bool Launch::prepare_thread() const {
  if (items_ == 1 || !kernel_.interface_.has_barriers) return true;
  try {
    WorkItems::of_thread().reserve(items_);
    return true;
  } catch (const std::bad_alloc&) {
    failed_.store(true, std::memory_order_relaxed);
    return false;
  }
}

void Launch::run_part(const void* job, void*, uint64_t begin, uint64_t end) {
  const Launch& launch = *static_cast<const Launch*>(job);
  if (!launch.prepare_thread()) return;
  const common::FloatingPoint standard;
  Item item = launch.item_;
  while (begin < end) {
    const uint64_t row = begin / item.group_count[0], x = begin - row * item.group_count[0];
    item.group_id[1] = row % item.group_count[1];
    item.group_id[2] = row / item.group_count[1];
    const uint64_t count = std::min(end - begin, item.group_count[0] - x);
    launch.run_row(item, x, x + count);
    begin += count;
  }
}

/// Groups beside one another in the first dimension.
void Launch::run_row(Item& item, uint64_t begin, uint64_t end) const {
  if (items_ == 1) {
    item.barrier = [](Item*, uint32_t) {};
    uint64_t exchange = 0;
    item.exchange = &exchange;
    return kernel_.run_(arguments_, &item, begin, end);
  }
  for (uint64_t group = begin; group < end; ++group) {
    if (kernel_.interface_.has_barriers) {
      WorkItems::of_thread().run(kernel_.run_, arguments_, item, group);
    } else {
      run_items(item, group);
    }
  }
}

/// Work-items that do not wait for each other, one after the other.
void Launch::run_items(Item& item, uint64_t group) const {
  uint64_t* const id = item.local_id;
  for (id[2] = 0; id[2] < item.local_size[2]; ++id[2]) {
    for (id[1] = 0; id[1] < item.local_size[1]; ++id[1]) {
      for (id[0] = 0; id[0] < item.local_size[0]; ++id[0]) kernel_.run_(arguments_, &item, group, group + 1);
    }
  }
}

Program::Program(const Code& code) : binary_(to_binary(code)), library_(common::KernelLibrary::load(code.library)) {
  if (library_ == nullptr) throw BuildError(common::KernelLibrary::problem());
  for (const KernelInterface& kernel : code.kernels) {
    const auto run = reinterpret_cast<RunGroups>(library_->find(run_symbol(kernel.name)));
    if (run == nullptr) throw BuildError("the code of kernel " + kernel.name + " is missing");
    kernels_.emplace(kernel.name, std::make_unique<Kernel>(kernel, run));
  }
}

std::unique_ptr<Program> Program::load(std::string_view binary, const Compiler& compiler) {
  const Code code = from_binary(binary);
  if (!compiler.can_run(code.needs)) {
    throw std::invalid_argument("a program for other processors (" + code.needs + ")");
  }
  return std::make_unique<Program>(code);
}

Kernel* Program::find(const std::string& name) const {
  const auto found = kernels_.find(name);
  return found == kernels_.end() ? nullptr : found->second.get();
}

}  // namespace outboard::host
