#pragma once
#include <string>

// Where the time between a process's start and its first step goes. Told by the main thread alone.
namespace millrace::startup {

// begin() starts the clock; done() says that `part` is over, which has taken the time since the part before, or since
// begin().
void begin();
void done(const char* part);
// "12.3 s: data 0.4, checkpoint 1.9, networks 5.2"; parts of one name are one, and what took no time is left out.
std::string describe();

}  // namespace millrace::startup
