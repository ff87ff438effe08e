#pragma once
#include <functional>
#include <string>

#include "spec.h"

// Decides at every call that stands before libc's or MPI's what becomes of it.
namespace millrace::inject {

// What the caller has to do about the call; everything else has happened already.
struct Verdict {
  int error = 0;         // fail with this errno
  bool shorten = false;  // do half of it
  bool skip = false;     // do nothing and say it went well
  bool poison = false;   // put in a NaN
  bool flip = false;     // change signs
};

// At the start, before any other thread. `specs` and `folder` as in --inject SPEC, --inject count=FOLDER.
void arm(const std::vector<Spec>& specs, const std::string& count_folder);

// False: nothing is injected into this process, calls may pass by.
bool is_armed();

// This process is about to make a call; `half` does half of it, for the one who dies in the middle.
Verdict at(Call call, const std::string& path, const std::function<void()>& half = {});

// The path behind a descriptor; empty for what is no file of the disk.
std::string path_of(int fd);

// Not a device, and none of the kernel's own.
bool is_of_disk(const std::string& path);

// Names the faults that were asked for and never came.
void report_unused();

}  // namespace millrace::inject
