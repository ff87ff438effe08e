#pragma once

// A signal only sets a flag; the loops look at it. SIGTERM, SIGINT, SIGUSR1, SIGUSR2 and, unless it is ignored, SIGHUP
// all mean: save and leave.
namespace millrace::stop {

void install();  // handlers; a second SIGINT within 5 s ends the process at once
bool requested();
int signal_number();       // which one came first; 0 = none
void request(int signal);  // as if the signal had come (tests, and a stop another rank reported)

}  // namespace millrace::stop
