// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace outboard {

class Traced;

/// Names work that a device does not finish, once, on the standard error: a thread looks for it where OUTBOARD_WATCHDOG
/// says after how many seconds. Where that is not set, there is no thread, and nothing is kept. Throws
/// Error(OB_INVALID_ARGUMENT) if it is no number of seconds.
void start_watchdog();
/// Ends the thread; at the end of the process, when nothing is waited for any more.
void stop_watchdog() noexcept;

/// Tells of work that is being handed to the driver, if the watchdog wants to know.
void watch(const std::shared_ptr<const Traced>& work);

}  // namespace outboard
