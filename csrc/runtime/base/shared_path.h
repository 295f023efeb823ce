// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <string>

namespace outboard {

/// A path that any thread may set while others read it. As a static object it is leaked: threads that build programs
/// outlive static destructors.
class SharedPath {
 public:
  std::string get() const {
    const std::lock_guard lock(mutex_);
    return path_;
  }
  void set(const std::string& path) {
    const std::lock_guard lock(mutex_);
    path_ = path;
  }

 private:
  mutable std::mutex mutex_;
  std::string path_;
};

}  // namespace outboard
