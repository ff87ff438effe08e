#include "millrace/train/state_file.h"

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/json_text.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/core/slurm.h"
#include "millrace/io/json.h"

namespace millrace {
namespace {

using StateJson = nlohmann::ordered_json;

std::string text_of(const StateJson& json) {
  return dump_any(json, 2) + "\n";
}

// Whether the run has not ended, as far as the file says.
bool is_of_the_living(const StateJson& json) {
  const auto status = try_parse_run_status(json.at("state").get<std::string>());
  return status && is_under_way(*status);
}

// A file that says so already keeps its date.
void write_if_other(const std::filesystem::path& path, const std::string& text) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && read_file(path) == text) return;
  write_file_atomically(path, text);
}

}  // namespace

RunStatus status_after(const Error& error) {
  const auto exit = error.exit();
  const bool may_go_on = exit == Exit::requeue || exit == Exit::io || exit == Exit::suspect_node;
  return may_go_on ? RunStatus::requeue : RunStatus::failed;
}

static StateJson describe(RunStatus status, const RunPoint& at, const std::optional<std::string>& checkpoint) {
  StateJson json = {{"state", to_string(status)}, {"step", at.step}, {"samples", at.samples}, {"checkpoint", nullptr}};
  if (checkpoint) {
    json["checkpoint"] = *checkpoint;
    json["digest"] = hash_file(std::filesystem::path(*checkpoint) / run_file::manifest).hex();
  }
  return json;
}

// How far the whole run went, in the words of `duration`.
static StateJson done(StateJson json) {
  json["steps"] = json["step"];
  return json;
}

static StateJson with_job(StateJson json, std::optional<Exit> exit, const std::string& reason) {
  json["job"] = optional_to_json(slurm::number("SLURM_JOB_ID"));
  json["restart"] = optional_to_json(slurm::number("SLURM_RESTART_COUNT"));
  json["exit"] = exit ? StateJson(static_cast<int>(*exit)) : StateJson(nullptr);
  json["reason"] = reason;
  return json;
}

void StateFile::write(RunStatus status, const RunPoint& at, const std::optional<std::string>& checkpoint,
                      std::optional<Exit> exit, const std::string& reason) const {
  if (!is_ours()) return;
  try {
    const auto json = describe(status, at, checkpoint);
    if (status == RunStatus::done) write_if_other(run_dir_ / run_file::done, text_of(done(json)));
    write_if_other(run_dir_ / run_file::state, text_of(with_job(json, exit, reason)));
  } catch (const Error& failed) {
    if (status == RunStatus::done) throw;
    log::warning("STATE stays as it was: {}", failed.what());
  }
}

void StateFile::write_facts(RunStatus status, const StateJson& facts, std::optional<Exit> exit) const {
  if (!is_ours()) return;
  StateJson json = {{"state", to_string(status)}};
  json.update(facts);
  if (status == RunStatus::done) write_if_other(run_dir_ / run_file::done, text_of(json));
  write_if_other(run_dir_ / run_file::state, text_of(with_job(json, exit, "")));
}

void StateFile::update(RunStatus status, const RunPoint& at, const std::optional<std::string>& checkpoint,
                       const std::string& reason) const {
  if (!is_ours()) return;
  try {
    const auto next = run_dir_ / run_file::next_state;
    write_file_atomically(next, text_of(with_job(describe(status, at, checkpoint), {}, reason)));
    // Looked at when all that takes time is over: this process may have been asleep in the middle of it.
    if (has_ended()) {
      std::error_code ignored;
      std::filesystem::remove(next, ignored);
      return;
    }
    rename_durably(next, run_dir_ / run_file::state);
  } catch (const Error& failed) {
    log::warning("STATE stays as it was: {}", failed.what());
  }
}

bool StateFile::has_ended() const {
  try {
    return !is_of_the_living(StateJson::parse(read_file(run_dir_ / run_file::state)));
  } catch (const std::exception&) {  // none that makes sense
    return false;
  }
}

void StateFile::write_failed(const Error& error) const {
  if (!is_ours()) return;
  try {
    auto json = StateJson::parse(read_file(run_dir_ / run_file::state));
    if (!is_of_the_living(json)) return;
    json["state"] = to_string(status_after(error));
    json["exit"] = static_cast<int>(error.exit());
    json["reason"] = error.what();
    write_file_atomically(run_dir_ / run_file::state, text_of(json));
  } catch (const std::exception&) {  // the run ends for another reason, which is being reported
  }
}

}  // namespace millrace
