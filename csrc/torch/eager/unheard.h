// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace outboard::aten {

/// Which of PyTorch's warnings the user hears of a call that is only tried.
enum class Heard { kNone, kResizing };

/// While one lives, PyTorch's C++ warnings of this thread are dropped: a call that is only tried or traced has nothing
/// to tell the user that the call itself does not; but for those of `out=` tensors that have another size.
class Unheard {
 public:
  explicit Unheard(Heard heard = Heard::kNone) : handler_(heard, c10::WarningUtils::get_warning_handler()) {}

 private:
  struct Handler : c10::WarningHandler {
    Handler(Heard heard, c10::WarningHandler* user) : heard(heard), user(user) {}
    void process(const c10::Warning& warning) override {
      const bool is_resizing = warning.msg().rfind("An output with one or more elements was resized", 0) == 0;
      if (heard == Heard::kResizing && is_resizing) user->process(warning);
    }

    Heard heard;
    c10::WarningHandler* user;
  };

  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_{&handler_};
};

}  // namespace outboard::aten
