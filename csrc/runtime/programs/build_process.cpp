// SPDX-License-Identifier: Apache-2.0
#include "runtime/programs/build_process.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "runtime/base/driver_call.h"
#include "runtime/base/shared_path.h"
#include "runtime/device.h"

namespace outboard {
namespace {

/// After so many deaths something is wrong with the machine, and starting more only costs time.
constexpr int kMostDeaths = 3;
std::atomic<int> deaths{0};

SharedPath& executable() {
  static SharedPath* const instance = new SharedPath;
  return *instance;
}

/// False if the other side is gone.
bool send_all(int socket, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(socket, next, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    next += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, void* data, size_t bytes) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t received = recv(socket, next, bytes, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    next += received;
    bytes -= static_cast<size_t>(received);
  }
  return true;
}

/// A text travels as its size in 8 bytes and its bytes.
bool send_text(int socket, const std::string& text) {
  const uint64_t size = text.size();
  return send_all(socket, &size, sizeof(size)) && send_all(socket, text.data(), text.size());
}

bool receive_text(int socket, std::string& text) {
  uint64_t size = 0;
  if (!receive_all(socket, &size, sizeof(size))) return false;
  text.resize(size);
  return receive_all(socket, text.data(), text.size());
}

/// The process's id, or -1. It gets the socket as its standard input, and what its compiler prints goes to our standard
/// error.
pid_t spawn(const std::string& path, const Device& device, int socket) {
  const Device::Origin& origin = device.origin();
  std::array<std::string, 4> words{path, origin.library, std::to_string(origin.place), device.properties().cache_key};
  std::array<char*, 5> arguments{};
  for (size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t id = -1;
  if (posix_spawn(&id, path.c_str(), &actions, nullptr, arguments.data(), environ) != 0) id = -1;
  posix_spawn_file_actions_destroy(&actions);
  return id;
}

std::string build(const Device& device, const std::string& source, const std::string& options) {
  const ob_driver& driver = device.driver();
  ob_program program = nullptr;
  if (driver.program_build(device.handle(), source.c_str(), options.c_str(), &program) != OB_OK) return {};
  std::string binary = binary_of(driver, program);
  driver.program_release(program);
  return binary;
}

std::unique_ptr<BuildProcess>& this_threads() {
  thread_local std::unique_ptr<BuildProcess> process;
  return process;
}

}  // namespace

bool BuildProcess::on_this_thread() { return this_threads() != nullptr; }

void BuildProcess::set_executable(const std::string& path) {
  executable().set(path);
  deaths = 0;
}

std::unique_ptr<BuildProcess> BuildProcess::start(const Device& device) {
  const std::string path = executable().get();
  if (path.empty() || device.origin().library.empty() || deaths.load() >= kMostDeaths) return nullptr;
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return nullptr;
  const pid_t id = spawn(path, device, sockets[1]);
  close(sockets[1]);
  if (id != -1) return std::unique_ptr<BuildProcess>(new BuildProcess(device, path, sockets[0], id));
  ++deaths;
  close(sockets[0]);
  return nullptr;
}

BuildProcess::~BuildProcess() {
  close(socket_);
  kill(id_, SIGKILL);  // it has nothing to do, and a copy of the socket in a forked process may keep it waiting
  while (waitpid(id_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<std::string> BuildProcess::build(const std::string& source, const std::string& options) {
  std::string binary;
  if (send_text(socket_, source) && send_text(socket_, options) && receive_text(socket_, binary)) return binary;
  ++deaths;
  return std::nullopt;
}

std::string BuildProcess::build_on_this_thread(const Device& device, const std::string& source,
                                               const std::string& options) {
  std::unique_ptr<BuildProcess>& mine = this_threads();
  if (mine != nullptr && (mine->device_ != &device || mine->path_ != executable().get())) mine.reset();
  if (mine == nullptr) mine = start(device);
  if (mine == nullptr) return {};
  const std::optional<std::string> binary = mine->build(source, options);
  if (!binary) mine.reset();
  return binary.value_or(std::string());
}

void serve_builds(const Device& device, int socket) {
  std::string source, options;
  while (receive_text(socket, source) && receive_text(socket, options)) {
    if (!send_text(socket, build(device, source, options))) return;
  }
}

std::string binary_of(const ob_driver& driver, ob_program program) {
  size_t bytes = 0;
  if (driver.program_binary(program, nullptr, &bytes) != OB_OK) return {};
  std::string binary(bytes, '\0');
  if (driver.program_binary(program, binary.data(), &bytes) != OB_OK) return {};
  return binary;
}

}  // namespace outboard
