#include "millrace/core/open_files.h"

#include <sys/resource.h>

#include <algorithm>

namespace millrace {

void allow_open_files(std::size_t wanted) {
  constexpr rlim_t others = 256;
  rlimit limit{};
  const rlim_t all = wanted + others;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= all) return;
  limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? all : std::min(all, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace millrace
