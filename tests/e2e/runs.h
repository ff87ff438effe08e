#pragma once
#include <gtest/gtest.h>

#include <set>

#include "e2e/program.h"

// What tests of whole runs look at.
namespace millrace::e2e {

inline void expect_success(const std::string& command) {
  const auto outcome = shell(command);
  ASSERT_EQ(outcome.exit_code, 0) << command << "\n" << outcome.output;
}

inline void expect_mentions(const Outcome& outcome, const std::string& text) {
  EXPECT_NE(outcome.output.find(text), std::string::npos) << "no \"" << text << "\" in\n" << outcome.output;
}

// The file of the trained weights (raw or ema), exported from a run's newest checkpoint.
inline std::string weights_of(const std::string& run, const std::string& which = "raw") {
  const auto out = workshop() / (run + "-pipeline");
  fs::remove_all(out);
  const auto exported =
      shell(millrace + " export --run " + (workshop() / run).string() + " --out " + out.string() + " weights=" + which);
  EXPECT_EQ(exported.exit_code, 0) << exported.output;
  return (out / "unet/diffusion_pytorch_model.safetensors").string();
}

inline fs::path checkpoint(const std::string& run, int step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08d", step);
  return workshop() / run / "checkpoints" / name;
}

inline std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

inline std::set<std::string> checkpoints(const std::string& run) {
  return names_in(workshop() / run / "checkpoints");
}

// Shell text that ends once `text` stands in `file`; after so many seconds, or a little more, it says that it does not.
inline std::string wait_for(const fs::path& file, const std::string& text, int seconds = 300) {
  const auto looks = std::to_string(seconds * 50);
  return "for i in $(seq " + looks + "); do if grep -q '" + text + "' " + file.string() +
         " 2>/dev/null; then break; fi; if [ $i = " + looks + " ]; then echo '" + text + " never stood in " +
         file.string() + "'; fi; sleep 0.02; done";
}

// Runs `command`, and sends it `signal` as soon as `text` stands in `file`; ends with the command's exit code.
inline std::string signal_once(const std::string& command, const std::string& signal, const fs::path& file,
                               const std::string& text) {
  return command + " & pid=$!; " + wait_for(file, text) + "; kill -" + signal + " $pid; wait $pid";
}

}  // namespace millrace::e2e
