// Stands before make_host_collectives in millrace_rehearsal (linked with --wrap): trainers on CPUs exchange gradients
// and parameters as those on GPUs do.
#include <cstdio>

#include "rehearsal.h"

namespace millrace {

std::unique_ptr<Collectives> rehearse_on_host(const Group& group) __asm__(
    "__wrap__ZN8millrace21make_host_collectivesERKNS_5GroupE");

// A save of more than 64 trainers goes this way, too, and would have to join it: not in these tests.
std::unique_ptr<Collectives> rehearse_on_host(const Group& group) {
  std::fputs("rehearsal: a group exchanges through pretended GPUs\n", stderr);
  return rehearse(group);
}

}  // namespace millrace
