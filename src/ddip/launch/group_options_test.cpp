#include "ddip/launch/group_options.h"

#include <gtest/gtest.h>

#include "ddip/base/testing/one_line.h"

namespace ddip::launch {
namespace {

using Args = std::vector<std::string>;

GroupOptions parsed(const Args& args) { return parse_group_flags(args, "%makedip"); }

std::string help(const Args& args, const std::string& command) {
  try {
    parse_group_flags(args, command);
  } catch (const HelpRequested& help) {
    return help.text;
  }
  return "no help";
}

TEST(GroupOptions, without_flags_are_the_documented_defaults) {
  const GroupOptions options = parsed({});
  EXPECT_EQ(options.action, Action::Start);
  EXPECT_EQ(options.name, "");
  EXPECT_FALSE(options.gpus || options.workers || options.threads || options.grace || options.seed);
  EXPECT_EQ(options.backend, "auto");
  EXPECT_EQ(options.timeout, Seconds(60));
  EXPECT_EQ(options.settle, Seconds(10));
  EXPECT_EQ(options.idle, Seconds(12 * 3600));
  EXPECT_EQ(options.on_exit, OnExit::Keep);
  EXPECT_EQ(options.start, StartMethod::Fork);
  EXPECT_TRUE(options.gc);
}

TEST(GroupOptions, workers_may_be_spelled_in_every_usual_way) {
  for (const Args& args : {Args{"-n2"}, Args{"-n", "2"}, Args{"--workers=2"}, Args{"--workers", "2"}, Args{"-rn2"}}) {
    EXPECT_EQ(parsed(args).workers, 2) << args[0];
  }
}

TEST(GroupOptions, every_flag_reaches_its_field) {
  const GroupOptions options = parsed({"-g",
                                       "3,1",
                                       "-n",
                                       "4",
                                       "--name",
                                       "a-B_1",
                                       "--backend",
                                       "gloo",
                                       "-r",
                                       "-v",
                                       "-t",
                                       "5",
                                       "--threads",
                                       "2",
                                       "--start",
                                       "exec",
                                       "--grace",
                                       "3",
                                       "--settle",
                                       "0",
                                       "--idle",
                                       "0",
                                       "--env",
                                       "A=1",
                                       "--env=B=",
                                       "--env",
                                       "C=x=y z",
                                       "--python",
                                       "/usr/bin/python3",
                                       "--seed",
                                       "7",
                                       "--client",
                                       "me",
                                       "--master-port",
                                       "29500",
                                       "--gc",
                                       "off",
                                       "--on-exit",
                                       "stop"});
  EXPECT_EQ(options.gpus, "3,1");
  EXPECT_EQ(options.workers, 4);
  EXPECT_EQ(options.name, "a-B_1");
  EXPECT_EQ(options.backend, "gloo");
  EXPECT_EQ(options.action, Action::Restart);
  EXPECT_TRUE(options.verbose);
  EXPECT_EQ(options.timeout, Seconds(5));
  EXPECT_EQ(options.threads, 2);
  EXPECT_EQ(options.start, StartMethod::Exec);
  EXPECT_EQ(options.grace, Seconds(3));
  EXPECT_EQ(options.settle, Seconds(0));
  EXPECT_EQ(options.idle, Seconds(0));
  const std::vector<std::pair<std::string, std::string>> env = {{"A", "1"}, {"B", ""}, {"C", "x=y z"}};
  EXPECT_EQ(options.env, env);
  EXPECT_EQ(options.python, "/usr/bin/python3");
  EXPECT_EQ(options.seed, 7U);
  EXPECT_EQ(options.client, "me");
  EXPECT_EQ(options.master_port, 29500);
  EXPECT_FALSE(options.gc);
  EXPECT_EQ(options.on_exit, OnExit::Stop);
}

TEST(GroupOptions, attach_kill_and_info_name_their_group) {
  EXPECT_EQ(parsed({"--attach", "g"}).action, Action::Attach);
  EXPECT_EQ(parsed({"--attach", "g"}).name, "g");
  EXPECT_EQ(parsed({"-k", "--name", "g"}).action, Action::Kill);
  EXPECT_EQ(parsed({"-i"}).action, Action::Info);
}

TEST(GroupOptions, a_shell_command_takes_the_name_as_a_word) {
  EXPECT_EQ(parse_group_flags({"train", "-n2"}, "ddip up").name, "train");
  EXPECT_EQ(config_error([] { parse_group_flags({"a", "b"}, "ddip up"); }),
            "ddip up b: expected one group's name, and a is given already");
  EXPECT_EQ(config_error([] { parse_group_flags({"a", "--name", "b"}, "ddip up"); }),
            "ddip up a: expected one group's name, and b is given already");
}

TEST(GroupOptions, bad_lines_are_refused_in_one_line) {
  struct Case {
    Args args;
    std::string message;
  };
  const std::string workers = "expected a number of workers from 1 to 4096";
  const std::string too_many = workers + "; each worker is a process, and one machine holds no more";
  const std::string time = "expected seconds above 0, or a time such as 90s, 10m, 12h";
  const std::string name = "expected a name of 1 to 32 letters, digits, _ or -";
  const std::string none_beside = " has no meaning beside it; expected one of the two";
  const std::string env = "expected K=V, K of letters, digits and _";
  const std::vector<Case> cases = {
      // numbers
      {{"-n", "0"}, "-n 0: " + workers},
      {{"-n", "-1"}, "-n -1: " + workers},
      {{"-n-1"}, "-n -1: " + workers},
      {{"--workers=-1"}, "--workers -1: " + workers},
      {{"-n", "1e9"}, "-n 1e9: " + too_many},
      {{"-n", "1000000000"}, "-n 1000000000: " + too_many},
      {{"-n", "99999999999999999999999"}, "-n 99999999999999999999999: " + too_many},
      {{"-n", "4097"}, "-n 4097: " + too_many},
      {{"-n", "2.5"}, "-n 2.5: " + workers},
      {{"-n", "two"}, "-n two: " + workers},
      {{"-n", "0x10"}, "-n 0x10: " + workers},
      {{"-n", ""}, "-n: expected a value, -n N"},
      {{"-n"}, "-n: expected a value, -n N"},
      {{"-n", "-v"}, "-n: expected a value, -n N"},
      {{"--workers="}, "--workers=: expected a value after =, --workers=N"},
      {{"-n", "2", "-n", "3"}, "-n: given 2 times (2, then 3); expected once"},
      {{"--threads", "0"}, "--threads 0: expected a number of threads from 1 to 1024"},
      {{"--seed", "-1"}, "--seed -1: expected a seed from 0 to 9223372036854775807"},
      {{"--master-port", "70000"}, "--master-port 70000: expected a port from 1 to 65535"},
      // times
      {{"-t", "0"}, "-t 0: " + time},
      {{"--timeout", "nan"}, "--timeout nan: " + time},
      {{"--idle", "-5"}, "--idle -5: " + time + " (0: never)"},
      {{"--settle", "soon"}, "--settle soon: " + time + " (0: at once)"},
      {{"--grace", "1e300"}, "--grace 1e300: expected at most 365d"},
      // words
      {{"--start", "frok"}, "--start frok: expected fork|exec; did you mean fork?"},
      {{"--gc", "yes"}, "--gc yes: expected on|off"},
      {{"--on-exit", "kepe"}, "--on-exit kepe: expected keep|stop; did you mean keep?"},
      {{"--name", "a b"}, "--name 'a b': " + name},
      {{"--name", "../x"}, "--name ../x: " + name},
      {{"--name", "[a,b]"}, "--name [a,b]: " + name},
      {{"--name", "{}"}, "--name {}: " + name},
      {{"--name", "a\nb"}, "--name a\\nb: " + name},
      {{"--attach", std::string(33, 'x')}, "--attach " + std::string(33, 'x') + ": " + name},
      {{"--client", "\xc3\xbc"}, "--client \xc3\xbc: " + name},
      {{"--env", "A"}, "--env A: " + env},
      {{"--env", "1A=2"}, "--env 1A=2: " + env},
      {{"--env", "=2"}, "--env =2: " + env},
      {{"--env", "A=1", "--env", "A=2"}, "--env A=2: A is given twice; expected each variable once"},
      {{"--env", "RANK=2"}, "--env RANK=2: ddip sets RANK for each worker; leave it out"},
      {{"--env", "CUDA_VISIBLE_DEVICES=2"},
       "--env CUDA_VISIBLE_DEVICES=2: ddip sets CUDA_VISIBLE_DEVICES for each worker; use -g"},
      {{"-g", "1,,2"}, "-g 1,,2: there is nothing between two commas; expected GPU numbers such as 0,2-3, or all"},
      {{"-g", "-1"}, "-g -1: -1 is not a GPU number; expected GPU numbers such as 0,2-3, or all"},
      // unknown flags and stray words
      {{"--wrokers", "2"}, "--wrokers: there is no such flag; did you mean --workers?"},
      {{"--wrokers=2"}, "--wrokers: there is no such flag; did you mean --workers?"},
      {{"-wrokers"}, "-wrokers: there is no such flag; did you mean --workers?"},
      {{"-name", "x"}, "-name: one dash too few; did you mean --name?"},
      {{"--zebra-crossing"}, "--zebra-crossing: there is no such flag; %makedip -h lists the flags"},
      {{"-x"}, "-x: there is no such flag; %makedip -h lists the flags"},
      {{"-rx"}, "-x: there is no such flag; %makedip -h lists the flags"},
      {{"-5"}, "-5: there is no such flag; %makedip -h lists the flags"},
      {{"--verbose=yes"}, "--verbose=yes: expected no value; --verbose takes none"},
      {{"4"}, "4: expected a flag; to name the group: --name NAME"},
      {{"-n", "2", "3"}, "3: expected a flag; to name the group: --name NAME"},
      {{"-g", "1", "2"}, "2: expected a flag; to name the group: --name NAME"},
      {{""}, "'': expected a flag; to name the group: --name NAME"},
      {{"-"}, "-: expected a flag; to name the group: --name NAME"},
      {{"--", "-n", "2"}, "--: expected a flag (%makedip -h lists them)"},
      {{"++", "x"}, "++: expected a flag (%makedip -h lists them)"},
      // conflicts
      {{"-k", "-n", "2"}, "-k -n: -k stops a group, so -n" + none_beside},
      {{"--workers", "2", "--kill"}, "--kill --workers: --kill stops a group, so --workers" + none_beside},
      {{"-r", "-k"}, "-k -r: -k stops a group, so -r" + none_beside},
      {{"--attach", "a", "-n", "2"}, "--attach -n: --attach joins a running group as it is, so -n" + none_beside},
      {{"--attach", "a", "-g", "0"}, "--attach -g: --attach joins a running group as it is, so -g" + none_beside},
      {{"--attach", "a", "--name", "b"},
       "--attach --name: --attach joins a running group as it is, so --name" + none_beside},
      {{"--attach", "a", "-r"}, "--attach -r: --attach joins a running group as it is, so -r" + none_beside},
      {{"-i", "--idle", "5"}, "-i --idle: -i only describes a group, so --idle" + none_beside},
      // later
      {{"--hosts", "a,b"},
       "--hosts a,b: groups over several hosts come in a later release; expected -n or -g on this machine"},
      {{"--slurm"}, "--slurm: Slurm jobs come in a later release; expected -n or -g on this machine"},
      {{"-a", "keras"}, "-a keras: expected none|fastai"},
      {{"-a", "fastia"}, "-a fastia: expected none|fastai; did you mean fastai?"},
      {{"-k", "-a", "fastai"}, "-k -a: -k stops a group, so -a" + none_beside},
      {{"--backend", "mpi"},
       "--backend mpi: MPI is for programs started by mpirun, where ddip.comm() finds it; expected auto, shm, nccl or "
       "gloo"},
      {{"--backend", "ddip"}, "--backend ddip: that is torch's name for it; expected shm"},
      {{"--backend", "gluo"}, "--backend gluo: expected auto|shm|nccl|gloo; did you mean gloo?"},
  };
  for (const Case& c : cases) EXPECT_EQ(config_error([&] { parsed(c.args); }), "%makedip " + c.message);
}

TEST(GroupOptions, help_is_grouped_and_speaks_with_the_commands_name) {
  const std::string text = help({"-h"}, "ddip up");
  EXPECT_EQ(text, help({"--help"}, "ddip up"));
  EXPECT_EQ(text, help({"-n", "0", "-k", "-h"}, "ddip up"));
  EXPECT_EQ(text, group_help("ddip up"));
  EXPECT_TRUE(text.starts_with("ddip up: start, restart, inspect or stop a group of workers\nusage: ddip up [NAME] "));
  const auto shape = text.find("\nshape\n"), lifetime = text.find("\nlifetime\n"), advanced = text.find("\nadvanced\n");
  EXPECT_LT(shape, lifetime);
  EXPECT_LT(lifetime, advanced);
  EXPECT_LT(advanced, text.find("\nexamples\n"));
  const std::string magic = group_help("%makedip");
  for (const std::string& flag : group_flag_names()) {
    EXPECT_NE(magic.find(flag), std::string::npos) << flag;
    const bool repairs = flag == "--ranks" || flag == "--rebuild";  // of the notebook only
    EXPECT_EQ(text.find("  " + flag + " ") == std::string::npos && text.find(", " + flag + " ") == std::string::npos,
              repairs)
        << flag;
  }
}

TEST(GroupOptions, some_ranks_are_restarted_beside_r_and_without_a_shape) {
  EXPECT_EQ(parse_group_flags({"-r", "--ranks", "1,3-4"}, "%makedip").ranks, "1,3-4");
  EXPECT_EQ(parse_group_flags({"-r"}, "%makedip").ranks, "");
  EXPECT_EQ(parse_group_flags({"--rebuild", "--name", "x"}, "%makedip").action, Action::Rebuild);
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--ranks", "1"}, {"-r", "--ranks", "1", "-n", "2"}, {"-r", "--ranks", "one"}, {"--rebuild", "-r"}}) {
    EXPECT_THROW(parse_group_flags(args, "%makedip"), ConfigError) << args.back();
  }
  EXPECT_THROW(parse_group_flags({"--rebuild"}, "ddip up"), ConfigError);
}

TEST(GroupOptions, help_fits_a_terminal) {
  const std::string text = group_help("%makedip");
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = text.find('\n', start);
    EXPECT_LE(end - start, 100U) << text.substr(start, end - start);
    start = end + 1;
  }
}

}  // namespace
}  // namespace ddip::launch
