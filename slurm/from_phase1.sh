# shellcheck shell=bash
# Phase 2's start, sourced by phase2_512.sbatch: a pipeline folder of phase 1's final U-Net, the scheduler that says what this was trained
# to predict, and everything else of model.pipeline. All of it runs in a subshell, which has no traps: outcome.sh, NOTE [Backquotes].

# Leaves the subshell that start_from_phase1 is.
refuse() { say "phase 2 does not start: $1"; say "hint: $2"; exit "${3:-74}"; }

# twin_of ENTRY: what PIPELINE has in the place of a link of START.
twin_of() { [[ -L $1 && -e $pipeline/$(basename "$1") ]] && realpath "$pipeline/$(basename "$1")"; }

# Whether what START has of a pipeline is that of another one than PIPELINE, which may have moved.
leads_elsewhere() {
  local entry twin
  for entry in "$start"/*; do
    if twin=$(twin_of "$entry") && [[ $(readlink "$entry") != "$twin" ]]; then return 0; fi
  done
  return 1
}

# link_parts FOLDER: what PIPELINE has, whose parts may be links of other names, and FOLDER lacks.
link_parts() {
  local entry name
  for entry in "$pipeline"/*; do
    name=$(basename "$entry")
    if [[ $name == FROM || ! -e $entry || -e $1/$name ]]; then continue; fi  # FROM: of an earlier phase
    ln -s "$(realpath "$entry")" "$1/$name" || refuse "$1 cannot be filled" "see above"
  done
}

# `train` compares it with what its checkpoint was trained with.
lead_to_pipeline() {
  local entry twin
  leads_elsewhere || return 0
  for entry in "$start"/*; do
    if twin=$(twin_of "$entry"); then ln -sfn "$twin" "$entry" || refuse "$start cannot be changed" "see above"; fi
  done
  say "all but the U-Net and the scheduler of $start is that of $pipeline now"
}

# start_from_phase1 PHASE1_DIR RUN_DIR PIPELINE: makes RUN_DIR/phase1, once; a requeue finds it there, and its file FROM says what it was
# made from: DIGEST CHECKPOINT weights=ema, or weights=raw where the run kept no EMA. The scheduler's dependency is only a hint, so phase 1's
# DONE is judged here. Once phase 2 has checkpoints of its own, nothing of phase 1 matters to it any more: that may train on, or be gone.
start_from_phase1() (
  local phase1=$1 run=$2 pipeline=$3 start=$2/phase1 checkpoint digest weights made entry
  if [[ -e $start/FROM && -n $(run_dir=$run checkpoints) ]]; then
    lead_to_pipeline
    say "phase 2 goes on from its own checkpoints; it began with $start, made from $(cut -d' ' -f2- "$start/FROM")"
    return
  fi
  if [[ -e $start/FROM && ! -e $phase1 ]]; then
    if leads_elsewhere; then refuse "$phase1 is gone, so nobody knows whether $pipeline fits it" "give model.pipeline as it was"; fi
    say "$phase1 is gone: $start is what was made of it"
    return
  fi
  [[ -e $phase1/DONE ]] || refuse "$phase1/DONE is not there" "phase 1 has to reach its duration first"
  [[ $(json_value "$phase1/DONE" state) == 'done' ]] || refuse "$phase1/DONE does not say done" "finish phase 1"
  checkpoint=$phase1/checkpoints/$(basename "$(json_value "$phase1/DONE" checkpoint)")
  digest=$(json_value "$phase1/DONE" digest)
  if [[ -e $start ]]; then
    [[ -n $digest && $(cut -d' ' -f1 "$start/FROM" 2> /dev/null) == "$digest" ]] ||
      refuse "$start was not made from $checkpoint, which $phase1/DONE names" "give PHASE1_DIR as it was, or another run.dir"
    if ! leads_elsewhere; then
      link_parts "$start"
      return 0
    fi  # else it is made anew, since the other folder has to be compared with phase 1's; nothing was trained from it
  fi
  [[ -d $checkpoint ]] || refuse "$checkpoint, which $phase1/DONE names, is not there" "finish phase 1 again"
  [[ -n $digest && $(cat "$checkpoint/MANIFEST.xxh3") == "$digest"* ]] ||
    refuse "$checkpoint is not the one that $phase1/DONE names: its digest differs" "finish phase 1 again"
  grep -qE '"ema/[^"]+": *\{' "$checkpoint/MANIFEST.json"
  case $? in
    0) weights=ema ;;
    1) weights=raw ;;
    *) refuse "$checkpoint cannot be exported" "see above" ;;
  esac
  made=$start.tmp-${SLURM_JOB_ID:-0}  # another job may be at it
  rm -rf "$made"
  mkdir -p "$made"
  # export verifies every digest of the checkpoint, and that the pipeline has the parts that it was trained with.
  "$MILLRACE" export --checkpoint "$checkpoint" weights="$weights" model.pipeline="$pipeline" --out "$made/export" ||
    refuse "$checkpoint cannot be exported" "see above; phase 2 takes no other parts than phase 1 had" $(($? == 2 ? 2 : 74))
  mv "$made"/export/{unet,scheduler,model_index.json} "$made/" || refuse "$made cannot be filled" "see above"
  rm -rf "$made/export"
  [[ -n $(ls "$pipeline") ]] || refuse "$pipeline has nothing in it" "see to model.pipeline"
  link_parts "$made"
  { [[ -d $made/unet ]] && echo "$digest $checkpoint weights=$weights" > "$made/FROM" && sync -f "$made/FROM" && rm -rf "$start" && mv -T "$made" "$start"; } ||
    refuse "$start cannot be made" "see above"
  rm -rf "$start".tmp-*  # of jobs that were ended in the middle
  say "U-Net (weights=$weights) and scheduler are those of $checkpoint, everything else is that of $pipeline"
)
