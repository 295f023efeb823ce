// SPDX-License-Identifier: Apache-2.0
#include "runtime/plans/host_functions.h"

#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace outboard {
namespace {

struct Table {
  std::shared_mutex mutex;
  std::map<std::string, HostFunction> exact, prefix;
};

Table& table() {
  static Table* const instance = new Table;  // leaked: plans may run until the process ends
  return *instance;
}

}  // namespace

HostFunctions& HostFunctions::get() {
  static HostFunctions* const instance = new HostFunctions;
  return *instance;
}

void HostFunctions::add(const std::string& name, HostFunction function) {
  std::unique_lock lock(table().mutex);
  const bool is_prefix = !name.empty() && name.back() == '*';
  if (is_prefix) {
    table().prefix[name.substr(0, name.size() - 1)] = std::move(function);
  } else {
    table().exact[name] = std::move(function);
  }
}

const HostFunction* HostFunctions::find(const std::string& name) const {
  std::shared_lock lock(table().mutex);
  const auto exact = table().exact.find(name);
  if (exact != table().exact.end()) return &exact->second;
  const HostFunction* best = nullptr;
  size_t longest = 0;
  for (const auto& [prefix, function] : table().prefix) {
    if (name.compare(0, prefix.size(), prefix) != 0 || (best != nullptr && prefix.size() < longest)) continue;
    best = &function;
    longest = prefix.size();
  }
  return best;
}

}  // namespace outboard
