// SPDX-License-Identifier: Apache-2.0
// outboard-build: builds device programs for the process that starts it (runtime/build_process), beside that process's
// own builds. Takes the driver's library, the device's place in it and the device's cache key; standard input is a
// socket to the parent. Ends with the thread that started it.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "runtime/device.h"
#include "runtime/programs/build_process.h"

namespace {

int serve(char** arguments) {
  using namespace outboard;
  const Device& device = Runtime::initialize({arguments[1]}).device(std::atoi(arguments[2]));
  if (device.properties().cache_key != std::string(arguments[3])) {
    std::fprintf(stderr, "outboard-build: the device is another one here: %s\n", device.properties().cache_key);
    return 1;
  }
  serve_builds(device, STDIN_FILENO);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::fputs("outboard-build is started by Outboard itself, to build device programs beside it.\n", stderr);
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGINT, SIG_IGN);  // a keyboard interrupt is the parent's to handle
  int status = 1;
  try {
    status = serve(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "outboard-build: %s\n", error.what());
  }
  std::_Exit(status);  // nothing here needs an end, and compilers' static destructors take their time
}
