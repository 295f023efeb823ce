// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "outboard/driver.h"

namespace outboard {

class Device;

/// Another process (`csrc/builder`) that builds programs for one device, on a machine where it is worth the while: the
/// compilers of some drivers hold one lock of their process. Belongs to the thread that started it and is killed with
/// that thread. Not thread-safe.
class BuildProcess {
 public:
  /// Where the program `outboard-build` is. Empty, as at first: there are no other processes. For all threads.
  static void set_executable(const std::string& path);

  /// The binary of a program, built by the calling thread's own process for the device, which is started if there is
  /// none. Empty if it was not built: the process died, none can be started, or it could not build the program. A
  /// build in this process then says what is wrong with it.
  static std::string build_on_this_thread(const Device& device, const std::string& source, const std::string& options);

  /// Whether the calling thread has a process.
  static bool on_this_thread();

  /// A new process for a device; nullptr if there is none: no executable, or too many processes died.
  static std::unique_ptr<BuildProcess> start(const Device& device);
  BuildProcess(const BuildProcess&) = delete;
  BuildProcess& operator=(const BuildProcess&) = delete;
  ~BuildProcess();

  /// The binary of a program, empty if the process could not build it. nullopt: the process is dead.
  std::optional<std::string> build(const std::string& source, const std::string& options);
  pid_t id() const { return id_; }

 private:
  BuildProcess(const Device& device, std::string path, int socket, pid_t id)
      : device_(&device), path_(std::move(path)), socket_(socket), id_(id) {}

  const Device* const device_;
  const std::string path_;
  const int socket_;
  const pid_t id_;
};

/// The other side: builds what is asked for over a socket until that is closed.
void serve_builds(const Device& device, int socket);

/// The binary of a program; empty if the driver gives none.
std::string binary_of(const ob_driver& driver, ob_program program);

}  // namespace outboard
