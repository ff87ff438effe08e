// millrace_inject: millrace with faults. The linker calls this main first; it takes --inject away from the other one.
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "faults.h"

extern "C" int __real_main(int argc, char** argv);

namespace {

using namespace millrace::inject;

struct Wishes {
  std::vector<Spec> specs;
  std::string count_folder;

  void add(const std::string& text) {
    if (text.starts_with("count=")) {
      count_folder = text.substr(6);
    } else {
      specs.push_back(parse_spec(text));
    }
  }
};

// Leaves the other arguments in `argv` and returns their number.
int take_wishes(int argc, char** argv, Wishes& wishes) {
  int left = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--inject") {
      argv[left++] = argv[i];
      continue;
    }
    if (++i == argc) throw std::invalid_argument("--inject needs a fault");
    wishes.add(argv[i]);
  }
  argv[left] = nullptr;
  return left;
}

}  // namespace

extern "C" int __wrap_main(int argc, char** argv) {
  try {
    Wishes wishes;
    if (const char* const text = std::getenv("MILLRACE_INJECT")) {
      std::istringstream words(text);
      for (std::string word; words >> word;) wishes.add(word);
    }
    argc = take_wishes(argc, argv, wishes);
    if (argc == 2 && std::string_view(argv[1]) == "--help") std::printf("%s\n", grammar);
    arm(wishes.specs, wishes.count_folder);
  } catch (const std::invalid_argument& mistake) {
    std::fprintf(stderr, "%s\n\n%s", mistake.what(), grammar);
    return 2;
  }
  std::atexit(report_unused);
  return __real_main(argc, argv);
}
