#pragma once
#include <filesystem>
#include <string>

// Where the threads of this process stand, for a person who asks later: RUN/log/stacks-rank-00003.txt.
//
// NOTE [Stacks] Each thread gets a real-time signal that nobody else has taken, and its handler only copies the return
// addresses; names are looked up by the thread that writes the file. All threads are asked at once and answer within a
// second or are named without a stack, with the state and the place in the kernel that /proc tells: one in
// uninterruptible sleep cannot answer; one that blocks signals is not asked.
namespace millrace::stacks {

// From now on the stacks of this process can be written, to `file`; `title` is its first line. Called once.
void write_to(std::filesystem::path file, std::string title);

// Begins to write, unless that is under way; nothing happens before write_to. Neither waits nor throws: the file system
// may be what hangs.
void start_writing();
// Whether the last start_writing() has ended, be it without success.
bool written();

// The stacks of all threads but the calling one.
std::string describe_threads();

}  // namespace millrace::stacks
