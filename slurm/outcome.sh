# shellcheck shell=bash disable=SC2006,SC2034,SC2207
# What became of a launch of millrace, and whether another one makes sense. Sourced by slurm/requeue.sh and scripts/supervise.
# Exit codes alone do not tell: srun and mpirun give the largest of all ranks, or their own.
# NOTE [Backquotes] bash parses the text of $(...) and <(...) each time it gets there. Where a signal has come by then (during an earlier
# substitution of the same command), bash 5.2 reads the trap as a part of that text: "unexpected EOF", the signal is lost and the script
# may end. So whatever a shell runs that has traps holds backquotes, which only the subshell parses; scripts/check looks for others.

# What BASH_ENV, SHELLOPTS or the environment have set for other scripts.
unalias -a
set +eCf
shopt -u failglob nullglob nocasematch xpg_echo
unset POSIXLY_CORRECT "${!SCANCEL_@}" "${!SQUEUE_@}" "${!SINFO_@}" "${!SCONTROL_@}"

# Before anything is started: arithmetic with what is no number would end the script in the middle.
whole='(0|[1-9][0-9]{0,8})'
max_failures=${MILLRACE_MAX_FAILURES:-3} max_requeues=${MILLRACE_MAX_REQUEUES:-10}  # -1: as many as it takes
for setting in "MILLRACE_MAX_FAILURES=$max_failures" "MILLRACE_MAX_REQUEUES=$max_requeues"; do
  if ! [[ ${setting#*=} =~ ^(-1|$whole)$ ]]; then echo "$setting: neither a number of times nor -1, for no limit" >&2; exit 2; fi
done
for setting in MILLRACE_{RESTART_DELAY,STORAGE_TIMEOUT,WATCH}; do
  if ! [[ ${!setting:-0} =~ ^$whole$ ]]; then echo "$setting=${!setting}: no whole number of seconds" >&2; exit 2; fi
done
if ! [[ ${MILLRACE_MIN_NODES:-0} =~ ^$whole$ ]]; then echo "MILLRACE_MIN_NODES=$MILLRACE_MIN_NODES: no number of nodes" >&2; exit 2; fi
pauses=${MILLRACE_STORAGE_PAUSES:-30 120 480}
if ! [[ $pauses =~ ^\ *$whole(\ +$whole)*\ *$ ]]; then
  echo "MILLRACE_STORAGE_PAUSES=$pauses: no whole numbers of seconds with spaces in between" >&2
  exit 2
fi
# No here-document anywhere: before bash 5.1 that is a file in /tmp, which may be full.
storage_pauses=(`echo "$pauses"`)
restart_delay=${MILLRACE_RESTART_DELAY:-10}
# Whose starts these are, in STATE and in the counts: only a job of Slurm has starts before those of its script.
job=none
# What find_folders finds: the run's folder, where results go, model.pipeline, checkpoint.resume.
run_dir="" out_dir="" pipeline_dir="" resume_key=""
unset PMIX_RANK PMI_RANK SLURM_STEP_NUM_TASKS  # of `srun --pty bash`: what is started from there is no rank of that step

# utc_now NAME: into this variable, as the program's files have it.
utc_now() { TZ=UTC0 printf -v "$1" '%(%FT%TZ)T' -1; }

# As the program: a terminal shows the time of the day; a job's log grows for weeks.
say() {
  local time
  if [[ -t 1 ]]; then printf -v time '%(%T)T' -1; else utc_now time; fi
  printf '[%s %s] %s\n' "${supervisor:-supervise}" "$time" "$*"
}

# json_value FILE KEY: the first value of that name, without its quotes; nothing where there is none, or null. - reads what it is given.
json_value() {
  local pair="\"$2\": *(\"(([^\"\\]|\\\\.)*)\"|-?[0-9][-+.0-9eE]*|true|false|null)"
  if [[ `cat "$1" 2> /dev/null` =~ $pair && ${BASH_REMATCH[1]} != null ]]; then echo "${BASH_REMATCH[2]:-${BASH_REMATCH[1]//\"/}}"; fi
}

# path_of CONFIG KEY: a path of this JSON text, as the file system has it; one that looks like an option begins with ./ then.
path_of() {
  local text
  text=`echo "$1" | json_value - "$2"`
  text=${text//\\\"/\"}
  printf -v text %b "$text"  # which knows all others of JSON's escapes
  if [[ $text == -* ]]; then text=./$text; fi
  echo "$text"
}

# from_section CONFIG SECTION: this JSON text from there on, since the keys of filters before it may have any names.
from_section() { echo "${1#*$'\n  "'"$2"$'": {'}"; }

# runs_once COMMAND ARGUMENT...: whether it only tries or tells something: there is nothing to go on with.
runs_once() {
  local word
  for word; do
    case $word in preflight | --dry-run | --print-config | --print-config=* | --help | -h) return ;; esac
  done
  return 1
}

# find_folders PROGRAM COMMAND ARGUMENT...: asks the program itself where it will write; its complaint and code if it refuses.
find_folders() {
  local config code=0
  config=`"$@" --print-config=json` || code=$?
  if ((code == 0)); then
    run_dir=`path_of "$config" dir`
    pipeline_dir=`path_of "$config" pipeline`
    resume_key=`from_section "$config" checkpoint | json_value - resume`
    export MILLRACE_TYPED_RESUME=$resume_key  # for what the program tells people: it may be started with another
    first_stamp=`state_stamp`
    out_dir=$run_dir
    case $2 in
      download) out_dir=`path_of "$config" out` ;;
      preprocess) out_dir=`from_section "$config" encode`; out_dir=`path_of "$out_dir" cache` ;;
    esac
  fi
  return "$code"
}

# Where there is no queue to go back to.
take_back() { :; }

told=""  # the signal that told us to stop
interrupted=0
sleeper=""  # the pause before a restart
# For traps: tell SIGNAL. tell_ranks is the script's own, and does nothing while no rank runs.
tell() {
  interrupted=1  # what await waits for is not over yet
  (take_back &)  # at each signal; within a subshell, since $! may be about to be read
  if [[ -n $told ]]; then return; fi
  told=$1
  tell_ranks  # first: nobody may be left to read
  if [[ -n $sleeper ]]; then kill "$sleeper" 2> /dev/null; fi  # it may be longer than the time left
  say "$told: the ranks are told to save and stop"
}

# keep_telling PROCESS COMMAND...: COMMAND tells the ranks, again every 10 s until PROCESS ends: before they exist, none hears it.
keep_telling() {
  local process=$1
  shift
  while kill -0 "$process"; do
    "$@"
    sleep 10
  done &> /dev/null &
}

# `wait` that signals interrupt, but do not end; returns what the process did.
await() {
  local code=127 got
  while :; do
    interrupted=0
    wait "$1"
    got=$?
    if ((got != 127)); then code=$got; fi  # 127: ended just before the last signal, and `code` is right already
    if ((!interrupted)); then return "$code"; fi
  done
}

# The run's checkpoints, not step-N.tmp-*, .abandoned-*, .damaged. -H: the folder may be a link to another disk.
checkpoints() { find -H "$run_dir/checkpoints" -maxdepth 1 -regextype posix-extended -regex '.*/step-[0-9]{8,}' 2> /dev/null; }

# A number that grows when something was brought to safety: the newest checkpoint's step, or the files of the other commands.
progress() {
  local newest
  if [[ -n $run_dir && $out_dir == "$run_dir" ]]; then
    newest=`checkpoints | sed 's/.*step-0*//' | sort -n | tail -n 1`
    echo "${newest:-0}"
  else
    find -H "$out_dir" -type f -name '*.json' 2> /dev/null | wc -l
  fi
}

# Sets `reached` to it. A folder of 400,000 files takes minutes to look through, in which no signal is heard: once after each launch.
reached=""
know_progress() {
  if [[ ${reached:-0} == 0 || $out_dir == "$run_dir" ]]; then reached=`progress`; fi
}

# Which STATE this is: it is replaced, never changed, so another inode or date means that the launch wrote it.
state_stamp() { stat -c '%i %y' "$run_dir/STATE" 2> /dev/null || echo none; }

# The same of the fault files, a line each.
fault_stamps() { find -H "$run_dir/fault" -name 'rank-*.json' -printf '%i %T@ %p\n' 2> /dev/null | sort; }

before_launch() { stamp_before=`state_stamp` faults_before=`fault_stamps` launched_at=$SECONDS lasted=0 reached=""; }
# Once it is over: pauses behind it are none of its time.
after_launch() { lasted=$((SECONDS - launched_at)); }

wrote_state() { [[ -n $run_dir && `state_stamp` != "$stamp_before" ]]; }

# Whether the ranks stopped since the job's time was about to end.
left_for_time() { [[ `json_value "$run_dir/STATE" reason` == *"time limit"* ]]; }

# Those of this launch. Older ones may be a living run's, which refuses it; the program removes them once the folder is its own.
fault_files() { { echo "$faults_before"; echo "$faults_before"; fault_stamps; } | sort | uniq -u | cut -d' ' -f3- | sort; }

# EXIT RANK HOST of each: src/comm/fault.cpp writes the rank first, the exit last of these. Few processes for all of them: an outage
# leaves a file of every rank. The rank must be a number: bash computes what stands in brackets, and runs commands that it finds there.
faults() {
  fault_files | xargs -r -d '\n' grep -ahsoE '"((rank|exit)": *(0|[1-9][0-9]*)|host": *"[^"]*")' | tr -d '":' |
    awk '$1 == "rank" { rank = $2; host = "" } $1 == "host" { host = $2 } $1 == "exit" { if (rank != "") print $2, rank, host; rank = "" }'
}

# exit_codes CODE: the launcher's, and what the ranks have written down, each once: where they abort, srun says 137.
exit_codes() {
  echo "$1"
  faults | awk '!seen[$1]++ { print $1 }'
  if wrote_state; then json_value "$run_dir/STATE" exit; fi
}

# Whether this job has ever got going: a 74 (or 126, 127: the program itself cannot be read) then means storage that went away, before
# that a path that was never there. Neither STATE nor the job's folder may be readable while storage is away, so what was seen once is kept.
worked=0
note_work() {
  if wrote_state || ((lasted > 300)); then worked=1; fi
  if [[ $job != none ]] && ((${SLURM_RESTART_COUNT:-0} > 0)); then worked=1; fi
}

# verdict CODE: into `what`, what the launch asks for: done; requeue (stopped in order); person, with the code for them in `person_code`;
# storage (restart when it is back); restart.
verdict() {
  local code=$1 code_of_rank state exit="" restart=restart
  person_code=""
  for code_of_rank in `exit_codes "$code"`; do
    case $code_of_rank in
      2 | 77 | 78) what=person person_code=$code_of_rank; return ;;
      74 | 126 | 127) if ((worked)); then restart=storage; fi ;;
    esac
  done
  if wrote_state; then
    state=`json_value "$run_dir/STATE" state` exit=`json_value "$run_dir/STATE" exit`
  else
    # There was nothing to do, it was stopped before it began, or it died.
    case $code in
      0) if [[ -z $run_dir || -e $run_dir/DONE ]]; then state='done'; else state=died; fi ;;
      75) state=requeue ;;
      *) state=died ;;
    esac
  fi
  what=$restart
  case $state in
    'done') what='done' ;;
    requeue)
      # STATE also says so after 74 and 76, since another start may get over them, and where somebody killed one rank and srun told
      # the others to stop; these are failures all the same. A signal (128 and more; 253 is Slurm's for a lack of memory) hides every 75.
      if [[ $exit =~ ^(75)?$ && -z `fault_files` ]] && ((code <= 128 || ${#told})); then what=requeue; fi
      ;;
  esac
}

# All pauses are used up.
storage_stays_away() { ((outages > ${#storage_pauses[@]})); }

# rest SECONDS: a pause that a signal ends.
rest() {
  sleep "$1" &
  sleeper=$!
  if [[ -n $told ]]; then kill "$sleeper" 2> /dev/null; fi  # which came just before
  await "$sleeper"
  sleeper=""
}

# ends_within SECONDS COMMAND...: false where it does not. A shell that looks at storage which hangs hears no signal and ends no more.
ends_within() {
  local process deadline=$((SECONDS + $1))
  "${@:2}" &> /dev/null &
  process=$!
  while kill -0 "$process" 2> /dev/null; do
    if ((SECONDS > deadline)); then return 1; fi
    sleep 0.2
  done
}

# Where nobody else can take the job: it waits with the storage.
storage_hangs() { say "$out_dir does not answer"; }

# Before anything is looked at there.
ask_storage() {
  ends_within "${MILLRACE_STORAGE_TIMEOUT:-600}" ls -U "$out_dir" ${run_dir:+"$run_dir" "$run_dir/fault"} || storage_hangs
}

# judge CODE: the verdict in the end. The pause before a restart comes first, and then another look: on NFS
# the last files of other hosts may show seconds later, and not before their folder is read again.
judge() {
  local seconds=$restart_delay seen_first
  ask_storage
  note_work
  verdict "$1"
  if [[ $what != restart && $what != storage || -n $told ]]; then return; fi
  if [[ $what == storage ]]; then
    count_outage
    # Where it could, the program itself has tried again for data.retry_for; an outage of storage lasts longer.
    if ! storage_stays_away; then
      seconds=${storage_pauses[outages - 1]}
      say "storage is away or a file is missing; start $outages after it in $seconds s"
    fi
  fi
  rest "$seconds"
  seen_first=$what reached=""
  if [[ -n $run_dir ]]; then ls "$run_dir" "$run_dir/fault" &> /dev/null; fi
  note_work
  verdict "$1"
  if [[ $what == storage && $seen_first != storage ]]; then count_outage; fi
}

# What to add to the arguments: checkpoint.resume=never, or a path, says where a run begins. Once it has saved something, it goes
# on from there, also when the job was requeued: STATE then names this job and a later checkpoint. That of another run's
# folder, which guard.on_repeat=rollback may have gone back to, is none of its own.
resume_again() {
  local saved own named
  if [[ -z $resume_key || $resume_key == auto ]]; then return; fi
  if [[ `state_stamp` == "$first_stamp" && `json_value "$run_dir/STATE" job` != "$job" ]]; then return; fi
  saved=`json_value "$run_dir/STATE" checkpoint`
  own=`realpath -m "$run_dir/checkpoints"` named=`realpath -m "$resume_key"`
  if [[ -n $saved && `realpath -m "$saved/.."` == "$own" && `realpath -m "$saved"` != "$named" ]] || has_own_checkpoint; then
    echo checkpoint.resume=auto
  fi
}

# NOTE [Own checkpoints] STATE may not name the first one: the run was killed between the two, or the disk was full. With `never` there
# are no others. With a path, others may lie in the folder until the first save puts them aside; they are older than config.yaml and
# STATE, which each start of the run writes, in this order. Of these, either may be newer than an own one: STATE, which the end of a run is
# written into, and config.yaml, where the next start was killed before its STATE.
has_own_checkpoint() {
  if [[ $resume_key == never ]]; then
    ((`progress` > 0))
  else
    [[ -n `written_since config.yaml` || -n `written_since STATE` ]]
  fi
}

# written_since FILE: a checkpoint that is newer than this file of the run. Its MANIFEST tells, which only its writer touches.
written_since() {
  find -H "$run_dir/checkpoints" -mindepth 2 -maxdepth 2 -regextype posix-extended -regex '.*/step-[0-9]{8,}/MANIFEST\.json' \
    -newer "$run_dir/$1" 2> /dev/null
}

# For people, whose next start begins where checkpoint.resume says.
tell_how_to_go_on() {
  if [[ -n `resume_again` ]]; then say "hint: go on with checkpoint.resume=auto in place of $resume_key"; fi
}

# For people: the code, and what the ranks that left have said, ten of them.
describe_end() {
  local file files option count=0
  know_progress
  say "ended with code $1${run_dir:+, STATE says `json_value "$run_dir/STATE" state`}, $reached reached"
  files=`fault_files`
  for option in -L -l; do  # as a rule those with 74 end because the others do
    printf %s "$files" | xargs -r -d '\n' grep -s "$option" '"exit": *74\b'
  done | {
    while read -r file; do
      if ((++count > 10)); then continue; fi
      say "  rank `json_value "$file" rank` on `json_value "$file" host`, `json_value "$file" phase`: `json_value "$file" reason`"
    done
    if ((count > 10)); then say "  and $((count - 10)) more ranks: $run_dir/fault"; fi
  }
}

# What was tried since the newest checkpoint. Restarts after failures and requeues are kept in a file beside the results, because a
# requeued job begins anew, and here, because that file may be what cannot be written. It holds for one job; the next one begins anew.
# Starts after 74 (outages) count here alone. known_start: the start of the job (SLURM_RESTART_COUNT) up to which requeues are counted.
counted_at="" failures=0 requeues=0 outages=0 known_start=0

# What that file says, if nothing is known yet; progress since then begins all counts anew.
know_counts() {
  know_progress
  if [[ -z $counted_at && `cat "$out_dir/restarts" 2> /dev/null` =~ ^([0-9]+)\ ([0-9]+)\ ([0-9]+)\ $job\ ([0-9]+)$ ]]; then
    counted_at=${BASH_REMATCH[1]} failures=${BASH_REMATCH[2]} requeues=${BASH_REMATCH[3]} known_start=${BASH_REMATCH[4]}
  fi
  if ((reached > ${counted_at:--1})); then failures=0 requeues=0 outages=0; fi
  # 0 is also what a folder shows that cannot be read now.
  if ((reached > 0)) || [[ -z $counted_at ]]; then counted_at=$reached; fi
}

# False where the file cannot be written.
save_counts() {
  if [[ -z $out_dir ]]; then return 0; fi  # not known yet: the next start counts this one
  { mkdir -p "$out_dir" && echo "$counted_at $failures $requeues $job $known_start" > "$out_dir/restarts"; } 2> /dev/null
}

count_outage() {
  know_counts
  outages=$((outages + 1))
}

give_up() {
  say "no progress in $1, still at $counted_at: giving up"
  if [[ ${supervisor:-} == requeue ]]; then
    say "hint: once the cause is gone, submit the job again"
  else
    say "hint: once the cause is gone, start again after removing $out_dir/restarts, which counts them"
  fi
  tell_how_to_go_on
}

of_limit() { if (($1 >= 0)); then echo " of $1"; fi; }

# may_restart: false when there were enough of them.
may_restart() {
  know_counts
  failures=$((failures + 1))
  save_counts || say "$out_dir/restarts cannot be written: restarts are forgotten when the job is requeued"
  if ((max_failures >= 0 && failures > max_failures)); then
    give_up "$max_failures restarts"
    return 1
  fi
  say "restart $failures`of_limit "$max_failures"` without progress"
}

# may_go_on_waiting WHAT: for a script whose requeues another limit ends.
may_go_on_waiting() { false; }

# may_requeue WHAT: the same of ways back to the queue, in order or not.
may_requeue() {
  know_counts
  requeues=$((requeues + 1))
  save_counts || say "$out_dir/restarts cannot be written: this requeue is forgotten"
  if ((max_requeues >= 0 && requeues > max_requeues)) && ! may_go_on_waiting "$1"; then
    give_up "$max_requeues $1"
    return 1
  fi
}

# Where there is no queue to wait in for storage, the pauses begin anew, as often as a job may be requeued.
begin_pauses_anew() {
  may_requeue "rounds of waiting for storage" || return 1
  say "storage stays away: another start, and the pauses begin anew"
  outages=0
}

forget_restarts() { rm -f "$out_dir/restarts"; }
