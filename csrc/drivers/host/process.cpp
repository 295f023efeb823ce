// SPDX-License-Identifier: Apache-2.0
#include "host/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace outboard::host {
namespace {

[[noreturn]] void fail(int code, const std::string& what) {
  throw std::system_error(code, std::generic_category(), what);
}

/// A descriptor of a new file of memory that is none of the standard streams', even where those are closed.
int new_memory_file() {
  const int file = memfd_create("outboard", MFD_CLOEXEC);
  if (file < 0) fail(errno, "memfd_create");
  if (file > STDERR_FILENO) return file;
  const int higher = fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int code = errno;
  close(file);
  if (higher < 0) fail(code, "fcntl");
  return higher;
}

/// A file that has no name and is gone when it is closed.
class MemoryFile {
 public:
  MemoryFile() : file_(new_memory_file()) {}
  ~MemoryFile() { close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int descriptor() const { return file_; }

  void write(std::string_view content) const {
    for (size_t done = 0; done < content.size();) {
      const ssize_t count = pwrite(file_, content.data() + done, content.size() - done, static_cast<off_t>(done));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail(errno, "writing what a compiler is to read");
      done += static_cast<size_t>(count);
    }
  }

  std::string read() const {
    struct stat status{};
    if (fstat(file_, &status) != 0) fail(errno, "fstat");
    std::string content(static_cast<size_t>(status.st_size), '\0');
    for (size_t done = 0; done < content.size();) {
      const ssize_t count = pread(file_, content.data() + done, content.size() - done, static_cast<off_t>(done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail(errno, "reading what a compiler wrote");
      if (count == 0) content.resize(done);
      done += static_cast<size_t>(count);
    }
    return content;
  }

 private:
  const int file_;
};

/// The environment of programs: nothing that changes what a compiler does.
std::vector<std::string> environment() {
  std::vector<std::string> kept = {"LC_ALL=C"};
  for (const char* name : {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"}) {
    if (const char* value = std::getenv(name); value != nullptr) kept.push_back(std::string(name) + "=" + value);
  }
  return kept;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// How a child is started.
class Setup {
 public:
  Setup() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    // A group of its own: an interrupt from the terminal is this process' business. No signal is blocked or ignored.
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~Setup() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  void connect(const MemoryFile& file, int to) { posix_spawn_file_actions_adddup2(&actions_, file.descriptor(), to); }

  pid_t start(std::vector<std::string> words) const {
    std::vector<std::string> variables = environment();
    pid_t child = -1;
    const int code = posix_spawn(&child, words[0].c_str(), &actions_, &attributes_, pointers(words).data(),
                                 pointers(variables).data());
    if (code != 0) fail(code, "starting " + words[0]);
    return child;
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

/// What a child exited with, or -1. Where the process ignores SIGCHLD, nobody is told: 0, and what the child wrote must
/// say.
int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno == ECHILD) return 0;
    if (errno != EINTR) fail(errno, "waitpid");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

Outcome run_program(const std::vector<std::string>& words, std::string_view input) {
  const MemoryFile in, out, err;
  in.write(input);
  Setup setup;
  setup.connect(in, STDIN_FILENO);
  setup.connect(out, STDOUT_FILENO);
  setup.connect(err, STDERR_FILENO);
  const int status = wait_for(setup.start(words));
  return {status, out.read(), err.read()};
}

}  // namespace outboard::host
