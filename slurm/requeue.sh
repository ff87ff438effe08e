# shellcheck shell=bash disable=SC2006,SC2154,SC2207
# The supervisor of one run, sourced by the batch scripts: supervise COMMAND ARGUMENT... starts `millrace COMMAND` on the
# nodes of the job, starts it again when it fails, gives the job back to the queue when it was told to stop, and exits.
# docs/slurm.md has the table of its decisions.
# Settings: MILLRACE (the binary), MILLRACE_COMMAND (in place of COMMAND: preflight), MILLRACE_MAX_FAILURES and MILLRACE_MAX_REQUEUES
# (3 restarts, 10 requeues in a row without progress), MILLRACE_MIN_NODES (half of the job's; fewer good nodes: back to the queue),
# MILLRACE_RESTART_DELAY (10 s), MILLRACE_STORAGE_PAUSES ("30 120 480" s: the same after 74, growing; then back to the queue),
# MILLRACE_STORAGE_TIMEOUT (600 s until a folder that does not answer sends the job back), MILLRACE_MPI (pmix; empty: what the
# site has set), MILLRACE_SRUN (more options of srun), MILLRACE_WATCH (30 s, NOTE [A dead batch host]).
# shellcheck disable=SC2034  # for outcome.sh
supervisor=requeue
here=`dirname "${BASH_SOURCE[0]}"`  # NOTE [Backquotes]
# shellcheck source=slurm/outcome.sh
source "$here/outcome.sh" || return 1
# shellcheck source=slurm/nodes.sh
source "$here/nodes.sh" || return 1
job=$SLURM_JOB_ID
step_pid="" watch_pid="" clock_pid="" time_is_up=0 scratch="" job_state="" code=0
unlaunched=0            # NOTE [Nothing started]
reduced=0 node_died=0  # whether drop_nodes has left one out, and one that died
if [[ -n ${SLURM_EXPORT_ENV:-} && ,${SLURM_EXPORT_ENV^^}, != *,ALL,* ]]; then
  say "warning: --export=$SLURM_EXPORT_ENV: nothing else that was set where sbatch was typed reaches this job, MILLRACE_CONFIG for one"
  say "hint: sbatch --export=ALL, where SBATCH_EXPORT or a wrapper of the site says otherwise"
fi
unset SLURM_EXPORT_ENV            # of sbatch's --export: the steps get what this script has
unset MILLRACE_END_TIME           # of the job this one was submitted from
export SLURM_TIME_FORMAT=standard # for `date`
# What InfiniBand sends from is locked in memory. sbatch hands on the limit of where it was typed, and srun this script's.
ulimit -S -l "`ulimit -H -l`" 2> /dev/null

# In front of srun: without the job's own numbers, or those of the job this one was submitted from, which would contradict the options.
own_memory=(env -u SLURM_MEM_PER_CPU -u SLURM_MEM_PER_GPU -u SLURM_MEM_PER_NODE -u SRUN_CPUS_PER_TASK)
own_numbers=("${own_memory[@]}")
for number in NTASKS NPROCS NTASKS_PER_{NODE,GPU,SOCKET} TASKS_PER_NODE NNODES JOB_NUM_NODES GPUS GPUS_PER_{NODE,TASK,SOCKET} \
  CPUS_PER_GPU CPUS_PER_TASK TRES_PER_TASK; do
  own_numbers+=(-u "SLURM_$number")
done
# A step on one node, beside the ranks: it takes none of the memory and GPUs that they need. CPUs it takes before Slurm 22.05, where
# --overlap lets it share those of older steps, and not newer steps share its own: start_watch.
small_step=("${own_numbers[@]}" -u SLURM_LABELIO -u SLURM_STDOUTMODE -u SLURM_STDERRMODE srun --overlap --mem=0 --gres=none --mpi=none --cpu-bind=none --nodes=1 --ntasks=1)

# States, as a pattern, that a job with its nodes passes through: SIGNALING is one that Slurm has just sent a signal.
passing_states='SIGNALING|STOPPED|SUSPENDED|RESIZING|CONFIGURING'

die() { say "$2"; exit "$1"; }

# Slurm's controller does not answer. Who has just submitted the job sees that; a requeued one goes back once more.
no_answer() {
  if ((${SLURM_RESTART_COUNT:-0} == 0)); then die 1 "$1"; fi
  say "back to the queue: $1"
  leave requeue
}

# A field of this job as Slurm knows it now, not as it was at the start. Its name may look like one, and a comment or the command, which
# come later.
job_field() {
  scontrol show job -o "$SLURM_JOB_ID" | head -n 1 | LC_ALL=C sed 's/ JobName=.* UserId=[^ ]* GroupId=/ GroupId=/' | grep -oE " $1=[^ ]*" |
    head -n 1 | cut -d= -f2-
}

# patiently COMMAND...: its first answer that is not empty, for two minutes: a controller may be away for a while.
patiently() {
  local answer tries=0
  until answer=`"$@"` && [[ -n $answer ]]; do
    if ((++tries > 12)); then return 1; fi
    sleep 10
  done
  echo "$answer"
}

# What the job has left that this one was submitted from: components of a heterogeneous job, a count of restarts.
forget_foreign_numbers() {
  local shown
  if [[ -z ${SLURM_HET_SIZE:-}${SLURM_RESTART_COUNT:-} ]]; then return; fi
  shown=`patiently scontrol show job -o "$SLURM_JOB_ID"` || return
  if [[ $shown != *" HetJobId="* ]]; then unset SLURM_HET_SIZE; fi
  if [[ $shown == *" Restarts=0 "* ]]; then unset SLURM_RESTART_COUNT; fi
}

# scontrol requeue, scancel and squeue take the id of one of an array's tasks for the whole array.
refuse_array() {
  local shown
  if [[ -z ${SLURM_ARRAY_JOB_ID:-} ]]; then return; fi  # it may be of the job this one was submitted from
  shown=`patiently scontrol show job -o "$SLURM_JOB_ID"` || no_answer "scontrol does not tell whether job $SLURM_JOB_ID is of an array"
  if [[ $shown == *" ArrayJobId="* ]]; then die 2 "a job array cannot be requeued task by task: submit a job for each run"; fi
}

# --gpus-per-node=0 means none, whatever --exclusive gives.
job_has_gpus() {
  local i group per_node=${SLURM_GPUS_PER_NODE:-}
  for ((i = 0; i < ${SLURM_HET_SIZE:-0}; ++i)); do  # of the components, that of one that has some
    group=SLURM_GPUS_PER_NODE_HET_GROUP_$i
    if [[ ${per_node:-0} == 0 ]]; then per_node=${!group:-$per_node}; fi
  done
  [[ $per_node != 0 && -n $per_node${SLURM_GPUS:-}${SLURM_GPUS_PER_TASK:-}${SLURM_JOB_GPUS:-} ]]
}

job_constraints() { scontrol show job -o "$SLURM_JOB_ID" | grep -oE ' Features=[^ ]*'; }

# The roles of the two kinds of GPU that the scripts were written for, into `config`: only where the job asks for both kinds. On
# other nodes, or without GPUs, no rank would have a role, and each start would end with 2.
add_cluster_roles() {
  local constraints  # of each component, where there are several
  if [[ -n ${MILLRACE_CONFIG:-} ]]; then return; fi
  constraints=`patiently job_constraints` || no_answer "scontrol does not tell the constraint of job $SLURM_JOB_ID"
  constraints=${constraints,,}
  if job_has_gpus && [[ $constraints == *a10g* && $constraints == *a100* && $constraints != *'|'* ]]; then
    config+=(--config "$home/configs/cluster_a10g_a100.yaml")
  else
    say "no roles by GPU, since the job has no GPUs, or no constraint of both a10g and a100: every rank does both unless roles.* say otherwise"
  fi
}

# The build that fits the job, else the one that is there, else what is installed.
find_program() {
  local builds=(release cuda) place
  if job_has_gpus; then builds=(cuda release); fi
  MILLRACE=`type -P millrace || realpath -m "$here/../build/${builds[0]}/bin/millrace"`
  for place in "../build/${builds[0]}" "../build/${builds[1]}" ../../..; do  # from PREFIX/share/millrace/slurm
    if [[ -x $here/$place/bin/millrace ]]; then
      MILLRACE=`realpath -m "$here/$place/bin/millrace"`
      break
    fi
  done
  if job_has_gpus && [[ $MILLRACE == */build/release/* ]] && ! ldd "$MILLRACE" 2> /dev/null | grep libtorch_cuda > /dev/null; then
    say "the job has GPUs, but there is no build/cuda: they stay idle"
  fi
}

# Signals go to the steps by Slurm: srun itself would answer TERM by killing all tasks.
tell_ranks() {
  if [[ -z $told || -z $step_pid ]]; then return; fi
  keep_telling "$step_pid" scancel --signal=USR1 "$SLURM_JOB_ID"
  if taken; then forgive_next_start; else mind_the_clock 45 "$step_pid"; fi &
}

# NOTE [The end of the time] Whatever the ranks hang in, a save or the queue for their step, or this script, which cannot be interrupted
# while it looks at storage that hangs: the job goes back before Slurm ends it for good. Who sees to that reads and writes nothing.

# mind_the_clock LEAD PROCESS: gives the job back LEAD seconds before its time ends, or at half of a shorter rest; not if PROCESS has
# ended by then.
mind_the_clock() {
  local lead=$1 now end
  export_end_time
  if [[ -z ${MILLRACE_END_TIME:-} ]]; then return; fi
  printf -v now '%(%s)T' -1
  if ((MILLRACE_END_TIME - now < 2 * lead)); then lead=$(((MILLRACE_END_TIME - now) / 2)); fi
  while end=$MILLRACE_END_TIME; do
    while ((now < end - lead)); do
      kill -0 "$2" 2> /dev/null || return
      sleep 5
      printf -v now '%(%s)T' -1
    done
    export_end_time
    if ((MILLRACE_END_TIME <= end)); then break; fi  # else somebody has given it more
  done
  if taken; then return; fi
  kill -ALRM $$  # the end of the time is no preemption
  say "back to the queue: the ranks do not leave" &  # the log may be on that storage, too
  give_back requeue
}

# From the start of the script, and with a launch where no end was known before. A lead of 10 s: ranks that nobody tells stop by
# themselves half a minute before.
start_clock() {
  if [[ -n $clock_pid ]] && kill -0 "$clock_pid" 2> /dev/null; then return; fi
  mind_the_clock 10 $$ &
  clock_pid=$!
}
stop_clock() { if [[ -n $clock_pid ]]; then kill "$clock_pid" 2> /dev/null; fi; }

# The ranks of an srun that died live on, and would block the next ones. Steps of other names are somebody else's.
end_leaked_steps() {
  local step deadline=$((SECONDS + 60))
  while :; do
    leaked=(`squeue -h -s -j "$SLURM_JOB_ID" -o '%i %j' 2> /dev/null | sed -n 's/ ranks$//p'`)
    if ((${#leaked[@]} == 0)) || ((SECONDS > deadline)); then return; fi
    for step in "${leaked[@]}"; do scancel --signal=KILL "$step" &> /dev/null; done
    sleep 1
  done
}

# /tmp of this node may be a full disk in memory, where a folder can be made and no file be filled.
write_hosts() {
  if [[ -z $scratch ]]; then make_scratch || return 1; fi
  printf '%s\n' "${placed[@]}" 2> /dev/null > "$scratch/hosts" && return
  rm -rf "$scratch"
  scratch=`mktemp -d -p "$PWD"` && printf '%s\n' "${placed[@]}" > "$scratch/hosts"
}

# A step on `nodes` with all their ranks: srun's `options`, what stands in `prefix` of it, the node of each rank in `placed`.
plan_step() {
  local node i number gpus=0 mpi=${MILLRACE_MPI-pmix}
  prefix=("${own_numbers[@]}") placed=()
  for node in "${nodes[@]}"; do
    for ((i = 0; i < ${tasks_on[$node]:-0}; ++i)); do placed+=("$node"); done
    gpus=$((gpus + ${gpus_on[$node]:-0}))
  done
  # With --mem=0 a rank may use all that the job has on its node, which differs where nodes do.
  # A step that does not get what it asks for within --immediate seconds is tried again, without the nodes that hold it up.
  options=(--job-name=ranks --kill-on-bad-exit=1 --wait=0 --immediate=600 --mem=0 ${mpi:+--mpi="$mpi"})
  if [[ -n ${SLURM_HET_SIZE:-} ]]; then
    # Every component as its own directives say.
    options+=(--het-group="0-$((SLURM_HET_SIZE - 1))")
    prefix=("${own_memory[@]}" -u SLURM_CPUS_PER_TASK -u SLURM_TRES_PER_TASK)
    for ((i = 0; i < SLURM_HET_SIZE; ++i)); do
      for number in {CPUS,TRES}_PER_TASK_{HET,PACK}_GROUP; do prefix+=(-u "SLURM_${number}_$i"); done
    done
  else
    # The ranks' places as a list of hosts: the only way to give nodes of one step different numbers of tasks. Beside it Slurm from 23.11 on
    # takes no --nodes.
    after_outages write_hosts || die 74 "neither ${TMPDIR:-/tmp} nor $PWD can be written"
    prefix+=(SLURM_HOSTFILE="$scratch/hosts")
    options+=(--distribution=arbitrary --ntasks="${#placed[@]}")
    # As many GPUs as the nodes have: every task then sees all of its node, and the program chooses by local rank.
    if ((node_died)); then
      options+=(--overlap)
      if ((gpus > 0)); then options+=(--gpus-per-node="$((gpus / ${#nodes[@]}))"); fi
    elif ((gpus > 0)); then
      options+=(--gpus="$gpus")
    fi
  fi
  # With --cpus-per-task (the job's own: SLURM_CPUS_PER_TASK may be another's) each rank has cores of its own, without it the ranks of a
  # node share out its cores themselves.
  if ((cpus_per_task > 1)); then
    options+=(--cpus-per-task="$cpus_per_task" --cpu-bind=cores)
  else
    options+=(--cpu-bind=none)
  fi
  # shellcheck disable=SC2206  # words are meant
  options+=(${MILLRACE_SRUN:-})
}

# NOTE [Nothing started] srun may end with 0 where none of its tasks could be started (up to 25.11), as where a dead step has left its
# socket behind. So a rank on this node empties a file. In containers, which come by MILLRACE_SRUN or --container, /tmp may be another one.
mark_of_launch() {
  if [[ -n ${MILLRACE_SRUN:-}${SLURM_CONTAINER:-}${SLURM_CONTAINER_ID:-} ]]; then return; fi
  if [[ -z ${SLURM_HET_SIZE:-} && " ${placed[*]} " != *" $SLURMD_NODENAME "* ]]; then return; fi
  mark=$scratch/launched
  { echo "not yet" > "$mark"; } 2> /dev/null || mark=""
}

# Where a step says that it sees another /tmp than this script, or what is left of the file is none, nobody knows.
# shellcheck disable=SC2016  # expanded where it runs
nothing_started() {
  if [[ -z $mark || ! -s $mark ]]; then return 1; fi
  [[ `timeout -k 5 60 "${small_step[@]}" --nodelist="$SLURMD_NODENAME" sh -c 'test -s "$0" || echo elsewhere' "$mark" 2> /dev/null` != elsewhere ]]
}

# One launch on `nodes`; its code is in `code`.
# shellcheck disable=SC2016  # expanded where it runs
launch() {
  local options prefix mark=""
  unlaunched=0
  plan_step
  mark_of_launch
  say "job $SLURM_JOB_ID, restart ${SLURM_RESTART_COUNT:-0} of it, `on_nodes`: srun ${options[*]}"
  export_end_time
  before_launch
  start_watch
  runs_once "$@" || start_clock
  # setsid: where processes are tracked by group, a TERM to this script would reach srun too, which then kills all tasks.
  # sh: where the program is not there, a rank ends with 127. Slurm itself would say ENOENT, which is 2, the code of wrong settings.
  "${prefix[@]}" setsid srun "${options[@]}" sh -c 'if [ -s "$0" ]; then true 2> /dev/null > "$0"; fi; exec "$@"' "$mark" "$MILLRACE" "$@" &
  step_pid=$!
  tell_ranks  # where the signal came just before
  await "$step_pid"
  code=$?
  step_pid=""
  if ((code == 0)) && nothing_started; then
    say "srun ended with 0, but no rank was started on this node"
    code=1 unlaunched=1
  fi
  after_launch
}

# A file of results that is newer than the ranks of this launch, where one of them has told.
written_in_launch() {
  if [[ ! -s $scratch/launched ]]; then find -H "$out_dir" -type f -newer "$scratch/launched" -print -quit 2> /dev/null; fi
}

# Where the first launch ends within a minute, by a code that is none of the program's, before a rank has written anything.
hint_at_mpi() {
  if ((unlaunched)); then return; fi
  case $code in 0 | 2 | 70 | 7[4-8] | 126 | 127) return ;; esac
  if ((lasted >= 60 || worked)) || [[ -n `fault_files``written_in_launch` ]]; then return; fi
  say "hint: if MPI did not start: srun --mpi=list tells what to set MILLRACE_MPI to ('${MILLRACE_MPI-pmix}' now; empty: what the site has set)"
  say "hint: where some nodes have InfiniBand and others none: OMPI_MCA_pml=ucx OMPI_MCA_pml_ucx_tls=any OMPI_MCA_pml_ucx_devices=any"
}

# NOTE [A dead batch host] When the node dies on which this script runs, a job with --no-kill stays RUNNING on the others with
# nobody in it, up to its time limit. So a small step on the last node looks whether this node still belongs to the job, and
# gives the job back to the queue if not. Signals to the steps are not meant for it.
# shellcheck disable=SC2016  # expanded where it runs
watch='
  trap "" USR1 USR2
  while sleep "$2"; do
    job=`scontrol show job -o "$SLURM_JOB_ID"` || continue
    [[ $job =~ " JobState="($3)" " ]] && continue
    [[ $job == *" JobState=RUNNING "* ]] || exit 0
    list=${job##* NodeList=}
    scontrol show hostnames "${list%% *}" | grep -qxF "$1" || scontrol requeue "$SLURM_JOB_ID"
  done'

start_watch() {
  local last=${nodes[-1]}
  if [[ $last == "$SLURMD_NODENAME" || -n ${SLURM_HET_SIZE:-} ]] || { [[ -n $watch_pid ]] && kill -0 "$watch_pid" 2> /dev/null; }; then
    return
  fi
  # Before 22.05 the ranks, who want whole nodes, would wait for the end of this step. "slurm 22.05.8", Debian's "slurm-wlm 22.05.8"
  if [[ `srun --version` =~ \ ([0-9]+)\. ]] && ((BASH_REMATCH[1] < 22)); then return; fi
  setsid "${small_step[@]}" --nodelist="$last" --job-name=watch bash -c "$watch" watch "$SLURMD_NODENAME" "${MILLRACE_WATCH:-30}" \
    "$passing_states" &> /dev/null &
  watch_pid=$!
}

clean_up() {
  rm -rf "$scratch"
  if [[ -n $watch_pid ]]; then kill "$watch_pid" 2> /dev/null; fi  # to srun, which ends the step at once
  stop_clock
}

# Whether only another job's need of the nodes ends this one (PreemptMode=CANCEL): then PreemptTime is that of the end. A person's scancel
# in a GraceTime comes later.
ended_by_preemption() {
  local at end
  preempted || return 1
  at=`job_field PreemptTime` end=`job_field EndTime`
  at=`date -d "$at" +%s 2> /dev/null` && end=`date -d "$end" +%s 2> /dev/null` && ((end <= at + 2))
}

# take_back: whether a job that Slurm is ending so goes back to the queue. At each signal (tell), since Slurm kills this script soon, which
# may wait for its ranks; and at the script's own end, maybe at the same time. Who comes second finds no PreemptTime, but the mark.
take_back() {
  local answer mark=${scratch:+$scratch/taken_back}
  if [[ `job_field JobState` != COMPLETING ]] || ! { ended_by_preemption || [[ -e $mark ]]; }; then return 1; fi
  touch "$mark" 2> /dev/null
  answer=`scontrol requeue "$SLURM_JOB_ID" 2>&1` || [[ $answer == *pending* ]]  # requeued a moment ago
}

# still_ours: that the job runs, told or stopped as it may be; false where Slurm's controller does not answer, or job_state soon is
# another. A job that Slurm is ending for another reason (a person's scancel, its time limit) must stay ended: requeueing would revive it.
still_ours() {
  job_state=`job_field JobState`
  case $job_state in
    RUNNING | SIGNALING | STOPPED) ;;
    SUSPENDED | RESIZING | CONFIGURING | '') return 1 ;;
    PENDING | REQUEUED | PREEMPTED | NODE_FAIL) die 75 "Slurm itself requeues the job ($job_state)" ;;
    *)
      if take_back; then die 75 "back to the queue: Slurm has ended the job for another one"; fi
      if ((`job_field Restarts` + 0 > ${SLURM_RESTART_COUNT:-0})); then die 75 "Slurm itself requeues the job ($job_state)"; fi
      tell_how_to_go_on
      die 75 "the job is not given back to the queue: it is $job_state; submit it again to go on"
      ;;
  esac
}

# give_back requeue | requeuehold: returns once Slurm has heard of it. While its controller is away, which may be long, the nodes are
# of use to nobody else anyway.
give_back() {
  local answer refused=0 end=${MILLRACE_END_TIME:-$((`date +%s` + 86400))}
  while :; do
    if still_ours; then
      if answer=`scontrol "$1" "$SLURM_JOB_ID" 2>&1`; then return; fi
      refused=$((refused + 1))
    else
      answer=${job_state:+it stays $job_state}
      answer=${answer:-its controller does not answer}
    fi
    if [[ $answer == *disabled* ]] || ((refused > 12 || `date +%s` > end)); then
      tell_how_to_go_on
      die 75 "no scontrol $1 of job $SLURM_JOB_ID ($answer); submit it again to go on"
    fi
    sleep 10
  done
}

# The end of this script, which never returns.
leave() {
  local ended=0
  trap 'ended=1; (take_back &)' TERM  # Slurm ends it: for another job, or since Slurm has heard of it
  give_back "$1"
  trap - TERM  # for `sleep`
  stop_clock
  rm -rf "$scratch"
  if ((ended)); then kill -TERM $$; fi
  exec sleep infinity  # until Slurm ends the script; to end it ourselves would count as completed
}

# Whether Slurm itself is sending the job back, or ending it.
taken() {
  local state
  state=`job_field JobState`
  # In a trap, a bare return is that of what it interrupted.
  if [[ -n $state && ! $state =~ ^(RUNNING|$passing_states)$ ]]; then return 0; fi
  preempted
}

# Whether another job is to have the nodes; a job with a GraceTime runs on for that long. Some Slurms may show the PreemptTime of an
# earlier start, and all that of a suspension (PreemptMode=SUSPEND) which is over.
preempted() {
  local at suspended
  at=`job_field PreemptTime`
  if [[ $at != [0-9]* || $at < `job_field StartTime` ]]; then return 1; fi
  suspended=`job_field SuspendTime`
  [[ $suspended != [0-9]* || $suspended < $at ]]
}

# The next start is counted here, or not at all: it does not count itself.
take_next_start() {
  know_counts  # before: what is kept has the start up to which was counted
  known_start=$((${SLURM_RESTART_COUNT:-0} + 1))
}

# Not at all: who is preempted often has not asked for too little time.
forgive_next_start() {
  if ((time_is_up)); then return; fi
  take_next_start
  save_counts
}

requeue_job() {
  patiently job_field JobState > /dev/null  # a preemption is none of the job's own requeues, and its controller alone knows
  if taken; then
    forgive_next_start
    still_ours  # ends here, unless Slurm leaves it to us
  else
    take_next_start
    if ! may_requeue requeues; then
      say "hint: --time has to leave room for the start, some steps and the lead of --signal"
      die 1 "not given back to the queue: $1"
    fi
  fi
  say "back to the queue: $1"
  leave requeue
}

# For `judge`, in place of a wait without end. Nothing is counted, which would be written there: the next start counts this one.
storage_hangs() {
  say "back to the queue: $out_dir does not answer" &
  resume_key=auto  # nothing is looked at there any more
  leave requeue
}

# For what a person has to see to, while nodes are of more use to others.
hold_job() {
  say "held in the queue: $1"
  say "hint: scontrol release $SLURM_JOB_ID once that is over"
  leave requeuehold
}

# Nodes that wait for storage are of more use to others. Where the count of requeues is on that storage, the job stays for some more
# pauses: in the queue it would go to and fro.
wait_for_storage() {
  if save_counts; then requeue_job "storage stays away"; fi
  begin_pauses_anew || hold_job "storage stays away"
}

# For each launch anew: the limit of a running job can be changed. Where Slurm does not say, which is last midnight to `date`, what
# it said before holds.
export_end_time() {
  local end
  end=`job_field EndTime`
  if end=`date -d "$end" +%s 2> /dev/null` && ((end > `date +%s`)); then export MILLRACE_END_TIME=$end; fi
}

# Whether ranks that have left for the end of the job's time know an older one than Slurm.
got_more_time() {
  local known=${MILLRACE_END_TIME:-0}
  if [[ -n $told ]] || ! left_for_time; then return 1; fi
  export_end_time
  ((known > 0 && ${MILLRACE_END_TIME:-0} > known + 60))
}

# Does what `judge` has found, and comes back where there is to be another start.
follow_verdict() {
  case $what in
    'done')
      forget_restarts
      die 0 "done"
      ;;
    person)
      # A part of the nodes may be unfit for the settings: batch.global not divisible by the trainers left, no node of a role.
      if ((reduced && person_code == 2)); then requeue_job "the settings do not fit the nodes left"; fi
      # Settings that this job has run with, on nodes that may not be what they were.
      if ((person_code != 2 || !worked)) || ! lost_a_node; then
        tell_how_to_go_on
        die "$person_code" "a person has to look at this: no restart"
      fi
      need_nodes
      may_restart || exit 1
      ;;
    requeue)
      if got_more_time; then
        say "the job's time limit was raised: its ranks, which left for the old one, start again"
      else
        requeue_job "stopped in order${told:+ after $told}"
      fi
      ;;
  esac
  if [[ -n $told ]]; then requeue_job "$told"; fi
  if [[ $what == storage ]]; then
    if storage_stays_away; then wait_for_storage; fi
  elif [[ $what == restart ]]; then
    hint_at_mpi
    may_restart || exit 1
  fi
  end_leaked_steps
}

need_nodes() {
  if ((${#nodes[@]} < min_nodes || ${#nodes[@]} == 0)); then requeue_job "${#nodes[@]} good nodes are too few"; fi
}

# Whether drop_nodes finds one to do without.
lost_a_node() {
  local had=${#nodes[@]}
  if [[ -n ${SLURM_HET_SIZE:-} ]]; then return 1; fi
  drop_nodes
  ((${#nodes[@]} < had))
}

# after_outages COMMAND...: its code. A job that was requeued had all that its start needs. Where that fails now, storage is away, which is
# waited for as after 74; then the job is held. A 2 means that somebody has changed the settings. A TERM ends COMMAND, too.
after_outages() {
  local code seconds
  for seconds in "${storage_pauses[@]}" never; do
    code=0
    "$@" || code=$?
    if ((code != 0 && code != 2)) && [[ -n $told ]]; then requeue_job "$told came before the start"; fi
    if ((code == 0 || code == 2 || (${SLURM_RESTART_COUNT:-0} == 0 && !worked))); then return "$code"; fi
    if [[ $seconds == never ]]; then hold_job "what it began with is not there, or its storage stays away"; fi
    say "storage is away or a file is missing; another look in $seconds s"
    rest "$seconds"
    if [[ -n $told ]]; then requeue_job "$told came before the start"; fi
  done
}

# ask_program COMMAND ARGUMENT...: find_folders, or the end.
ask_program() {
  local code=0
  after_outages find_folders "$MILLRACE" "$@" || code=$?
  case $code in
    0) ;;
    2 | 74) die "$code" "the program refuses these settings" ;;
    126 | 127) die "$code" "$MILLRACE cannot be started here" ;;
    *) die "$code" "$MILLRACE, asked what these settings mean, ended with $code" ;;
  esac
}

# For small files. /tmp of this node may be full, or not there.
make_scratch() { scratch=`mktemp -d || mktemp -d -p "$PWD"`; }

# Of every start, once it is known where results go.
begin() {
  [[ -n $scratch ]] || after_outages make_scratch || die 74 "neither ${TMPDIR:-/tmp} nor $PWD can be written"
  if [[ `job_field Requeue` == 0 ]]; then
    say "warning: Slurm will not requeue this job (--no-requeue, or the site's JobRequeue=0): its time limit ends it for good"
    say "hint: scontrol update JobId=$SLURM_JOB_ID Requeue=1"
  fi
  count_this_start
  plan_tasks
}

is_done_by_this_job() { [[ `json_value "$run_dir/STATE" state` == 'done' && `json_value "$run_dir/STATE" job` == "$job" ]]; }

# A start that nobody has counted or forgiven: the node of this script died, or the ranks did not leave in time. A job that comes back
# so for ever without progress has to end, too. Not so one that this job has done: where it went back to the queue within a GraceTime, Slurm
# from 24.05 on takes its next end, whatever it is, for that of the preemption, and starts it once more.
count_this_start() {
  if ((${SLURM_RESTART_COUNT:-0} == 0)) || is_done_by_this_job; then return; fi
  know_counts
  if ((SLURM_RESTART_COUNT <= known_start)); then return; fi
  known_start=$SLURM_RESTART_COUNT
  may_requeue requeues || die 1 "the job does not start again"
}

# Settings may hold secrets, and others may read this log. show_command COMMAND ARGUMENT...: into the variable `shown`.
show_command() {
  local word previous="" settings=0
  shown=$1
  for word in "${@:2}"; do
    if [[ $word == --* || $previous == --config ]]; then shown+=" $word"; else ((settings += 1)); fi
    previous=$word
  done
  if ((settings > 0)); then shown+=" with $settings settings"; fi
}

supervise() {
  local shown what person_code again
  if [[ -n ${MILLRACE_COMMAND:-} ]]; then set -- "$MILLRACE_COMMAND" "${@:2}"; fi
  ask_program "$@"
  show_command "$@"
  say "$MILLRACE $shown, results in $out_dir"
  begin
  while :; do
    if [[ -n $told ]]; then requeue_job "$told came before the start"; fi
    again=(`resume_again`)
    launch "$@" "${again[@]}"
    if runs_once "$@"; then
      note_work
      hint_at_mpi
      die "$code" "$1 ended with code $code: what only tries something is started once"
    fi
    judge "$code"
    describe_end "$code"
    follow_verdict
    if [[ -n ${SLURM_HET_SIZE:-} ]]; then
      if [[ -n `nodes_in_state 'down|fail|.*\*$'` ]]; then requeue_job "a node is down"; fi  # nobody is asked
    elif [[ $what != person ]]; then
      drop_nodes
      need_nodes
    fi
  done
}

trap clean_up EXIT
for signal in TERM INT HUP USR1 USR2; do
  # shellcheck disable=SC2064  # expanded now
  trap "tell $signal" "$signal"
done
trap 'time_is_up=1; tell ALRM' ALRM  # of mind_the_clock
refuse_array
forget_foreign_numbers
runs_once ${MILLRACE_COMMAND:+"$MILLRACE_COMMAND"} "$@" || start_clock
make_scratch 2> /dev/null || true  # for take_back; `begin` tries again
if [[ -z ${MILLRACE:-} ]]; then find_program; fi
