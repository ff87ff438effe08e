#include "millrace/report/report.h"

#include <fmt/format.h>

#include "sections.h"

namespace millrace {

Document make_report(Runs runs) {
  Document document;
  for (const auto& run : runs) document.title += (document.title.empty() ? "" : ", ") + run.name;
  document.subtitle = runs.size() == 1 ? runs[0].folder.string() : fmt::format("{} runs side by side", runs.size());
  for (auto& section : {summary_section(runs), speed_section(runs), training_section(runs), rejected_section(runs),
                        pictures_section(runs), evaluation_section(runs), starts_section(runs), events_section(runs),
                        environment_section(runs), configuration_section(runs)})
    if (!section.blocks.empty()) document.sections.push_back(section);
  return document;
}

}  // namespace millrace
