#include <stdlib.h>

#include "millrace/core/error.h"
#include "pipeline.h"
#include "process.h"
#include "workshop.h"

namespace millrace::storm {

Workshop open_workshop(const fs::path& millrace, const std::string& name) {
  Workshop workshop;
  std::string pattern = fs::temp_directory_path() / (name + "-XXXXXX");
  ensure(::mkdtemp(pattern.data()) != nullptr, "no temporary folder");
  workshop.millrace = millrace;
  workshop.folder = pattern;
  workshop.pipeline = workshop.folder / "pipeline";
  output_of({{millrace.string(), "init", "--preset", "tiny", "--out", workshop.pipeline.string()}});
  shrink_pipeline(workshop.pipeline);
  return workshop;
}

}  // namespace millrace::storm
