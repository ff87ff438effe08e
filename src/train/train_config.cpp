#include "millrace/train/train_config.h"

#include "millrace/core/error.h"

namespace millrace {

void BatchConfig::describe(config::Section& section) {
  section.key("global", global, "samples per optimizer step over all trainers").at_least(1);
  section.key("micro", micro, "samples per forward pass of one trainer").at_least(1);
}

void CheckpointConfig::describe(config::Section& section) {
  section
      .key("every", every, "how often the state is saved; auto = every 5 to 10 min, by what a save costs; null = never")
      .above(0);
  section.key("keep", keep, "newest checkpoints that are kept").at_least(1);
  section
      .key("keep_every", keep_every,
           "the first checkpoint at or after each multiple of this is kept for good; null = none")
      .above(0);
  section.key("resume", resume, "auto = the newest good checkpoint of run.dir, never, or the folder of a checkpoint");
  section.key(
      "allow_changes", allow_changes,
      "continue although run.seed, the data, batch.global, the transform, the tokenizer, the encoders or what the "
      "U-Net predicts differ; never with the weights of another network");
}

void PicturesConfig::describe(config::Section& section) {
  section
      .key(
          "every", every,
          "how often pictures are painted; left out once painting has taken more than 2 % of the time and five minutes")
      .above(0);
  section.key("prompts", prompts,
              "file with a prompt a line, or .jsonl, .csv, .tsv with prompt, negative_prompt; null = no pictures");
  section.key("count", count, "pictures each time; number n begins with the noise of seed n, prompts repeat")
      .at_least(1);
  section.key("steps", steps, "sampling steps").at_least(1);
  section.key("guidance_scale", guidance_scale, "as generate.guidance_scale").at_least(0);
}

void ValidationConfig::describe(config::Section& section) {
  section.key("every", every, "how often the loss on data.validation is measured").above(0);
  section
      .key("batches", batches,
           "batches of batch.global samples it is measured on; encoded once at the start and kept in memory")
      .at_least(1);
}

void LogConfig::describe(config::Section& section) {
  section.key("every", every, "how often metrics are written").above(0);
  section.key("tensorboard", tensorboard, "write TensorBoard event files");
  section.key("prometheus", prometheus, "file for Prometheus' textfile collector, FILE.prom; null = none");
  section.key("ids", ids,
              "write ids.jsonl: the sample ids of every step; 3 bytes more than its id a sample, some 20 GB for 550000 "
              "steps of 2048 images");
}

void RecordConfig::describe(config::Section& section) {
  section.key("steps", steps, "steps whose tensors are written to RUN/records, to replay them elsewhere").at_least(1);
}

void GuardConfig::describe(config::Section& section) {
  section.key("non_finite", non_finite, {{"skip", NonFinite::skip}, {"stop", NonFinite::stop}},
              "what a loss or gradient that is not finite does: skip the update, or stop with exit code 78");
  section
      .key("spike_sigma", spike_sigma,
           "a step whose loss is this many standard deviations above its mean is skipped, once 100 steps have been "
           "judged; null = none, for a batch.global of a few images, of which one alone can look like a spike")
      .above(0);
  section.key("max_skips", max_skips, "so many skipped steps in a row are allowed").at_least(0);
  section.key("on_repeat", on_repeat, {{"stop", OnRepeat::stop}, {"rollback", OnRepeat::rollback}},
              "what more of them do: stop with exit code 78, or go back to the checkpoint before them and use up their "
              "batches without an update");
  section
      .key("digest_every", digest_every,
           "how often the weights that every trainer holds whole are compared (none with full_shard); null = never")
      .above(0);
  section
      .key("hang_timeout", hang_timeout,
           "longest a rank may stand still or send no samples; five times as long while loading, in the first step, "
           "validation, pictures and saves; auto = 30 min")
      .above(0);
}

void GuardConfig::check(config::Report& report) const {
  if (hang_timeout.value_or(Duration::seconds(1)).unit != Duration::Unit::seconds)
    report.problem("guard.hang_timeout", "must be a time, as in \"30 min\"");
}

double GuardConfig::hang_seconds() const {
  const auto timeout = hang_timeout.value_or(Duration::seconds(1800));
  ensure(timeout.unit == Duration::Unit::seconds, "guard.hang_timeout is a time");
  return timeout.count;
}

}  // namespace millrace
