//! `tidewall tune` measures the cost of receiving on this machine, and the budget and
//! interrupt interval that suit it; or sets those of a live stack ([`live`]).

mod live;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tidewall_lab::tune::{Options, OutOfRange, Sample, Tuned, tune};
use tidewall_lab::{Interrupted, Missing};
use tidewall_receive::control::Setting;
use tidewall_receive::control::model::Prediction;

use crate::end::{Failure, Outcome, say};
use crate::table::{Table, wrap};
use crate::units::{self, Rate, nanoseconds, per_second};

/// Losses that no setting of receive control prevents.
const QUEUE: &str = "A veth's ring has 256 places: what its peer sends without a queueing discipline while they are \
                     full is lost, whatever Bp and T are. At the peer: tc qdisc replace dev PEER root pfifo \
                     limit 1000 (Linux 6.16 and later). `tidewall doctor --interface IF` says whether it has one.";

/// Measure the cost of receiving on this machine, and predict the best Bp and T; or set
/// those of a live stack.
///
/// Bp is the number of frames that a round takes from the device, T the time between the
/// device's interrupts. A UDP service that discards is loaded over a veth pair in its own
/// network namespaces (tw-…), which are removed whatever happens; no other interface is
/// touched. The CPU time of its threads yields the costs of a frame, a switch and an
/// interrupt. From those, the model of RHIP (Chang & Muppala, 2007, section III) predicts
/// the rest.
///
/// With a process, nothing is measured: its stack continues under another policy, Bp and
/// T, also as an application of a manager (tidewalld). That needs no privilege for one's
/// own process.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tidewall tune                                  a service of 200 multiplications a packet\n  \
    tidewall tune --work 2000 --rate 300k          a heavier one, at 300,000 packets/s\n  \
    tidewall tune --seconds 30 --json tune.json    longer, and every number to a file\n  \
    tidewall tune 4711 --policy napi --budget 64 --interval 50us   process 4711 from now on\n  \
    tidewall tune 4711 --policy adaptive           as it was by default\n\n\
    What is measured is for: tidewall serve … --policy napi --budget Bp --interval T. The default policy, \
    adaptive, finds its own.\n\
    Exit codes: 0 measured, or set; 1 it broke off, or the process has no such stack; 2 wrong arguments, or privileges are missing; 130 interrupted."
)]
pub struct Arguments {
    /// Process whose stacks to set; needs --policy
    #[arg(value_name = "PID", requires = "policy",
          conflicts_with_all = ["work", "payload", "rate", "seconds", "json"])]
    process: Option<u32>,
    #[command(flatten)]
    control: live::Control,
    /// Floating-point multiplications the service makes for each packet
    #[arg(long, value_name = "N", default_value_t = 200)]
    work: u32,
    /// Bytes of UDP payload of each packet
    #[arg(long, value_name = "BYTES", default_value_t = 14)]
    payload: u16,
    /// Packets per second to tune for (300000, 300k, 1.2M), or max for all that the
    /// sender can send
    #[arg(long, value_name = "PPS", default_value = "max", value_parser = units::rate)]
    rate: Rate,
    /// Seconds of load, 3 to 60, over all settings; starting them takes as long again
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u32,
    /// Write the costs, every sample and every prediction to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Outcome {
    if let Some(process) = arguments.process {
        return live::set(process, &arguments.control);
    }
    let options = Options {
        work: arguments.work,
        payload: arguments.payload,
        rate: arguments.rate.0,
        seconds: arguments.seconds,
    };
    // Whether a file can be written is known before anything is measured.
    options
        .check()
        .map_err(|error| Failure::usage(error.to_string()))?;
    if let Some(path) = &arguments.json {
        writable(path)?;
    }
    let mut progress = tidewall_lab::progress::automatic();
    let tuned = tune(options, progress.as_mut()).map_err(|error| failure(&error))?;
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&json_of(&options, &tuned))
            .map_err(|error| Failure::answer(format!("writing JSON: {error}")))?;
        std::fs::write(path, text + "\n")
            .map_err(|error| Failure::io(&format!("writing {}", path.display()), &error))?;
    }
    say(&text_of(&options, &tuned))
}

fn writable(path: &Path) -> Outcome {
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .map(drop)
        .map_err(|error| Failure::io(&format!("writing {}", path.display()), &error))
}

/// Joins an error and its causes on one line, with its exit code.
fn failure(error: &anyhow::Error) -> Failure {
    let code = if error.is::<OutOfRange>() || error.is::<Missing>() {
        2
    } else if error.is::<Interrupted>() {
        130
    } else {
        1
    };
    Failure::with_code(code, format!("{error:#}"))
}

fn text_of(options: &Options, tuned: &Tuned) -> String {
    let machine = &tuned.measured.machine;
    let time = |time: Duration| nanoseconds(time.as_nanos() as f64);
    let mut text = format!(
        "Costs on this machine, {} multiplications a packet, {} bytes of payload:\n",
        options.work, options.payload
    );
    let mut costs = Table::of(2, "|>|");
    for (name, cost, about) in [
        ("Tp", machine.protocol, "protocol processing of a frame"),
        (
            "Ta",
            machine.application,
            "the application's work for a frame",
        ),
        (
            "Tc(k)",
            machine.switch_poller,
            "a polling round beyond its frames",
        ),
        (
            "Tc(a)",
            machine.switch_application,
            "the switch back to the application",
        ),
        (
            "Titr",
            machine.interrupt,
            "an interrupt and the wake-up that it is",
        ),
    ] {
        costs.row([name.to_owned(), time(cost), about.to_owned()]);
    }
    // The header of three empty names is an empty line.
    text += costs.text().trim_start_matches('\n');
    let _ = write!(
        text,
        "\nSoftirq arrangement, {} packets/s sent in bursts of {}:\n",
        per_second(tuned.load.rate),
        tuned.load.burst
    );
    text += &table(tuned);
    if let Some(best) = &tuned.best {
        let _ = writeln!(
            text,
            "\nMeasured best:   {}  {}/s",
            words(best.setting()),
            per_second(best.goodput)
        );
    }
    let predicted = machine.predict(tuned.load, tuned.predicted, tuned.room);
    let _ = writeln!(
        text,
        "Predicted best:  {}  {}/s, mode {}",
        words(tuned.predicted),
        per_second(predicted.goodput),
        predicted.mode.number()
    );
    let own = tuned.predicted_self_polling;
    let polling = machine.predict_self_polling(tuned.load, own, tuned.room);
    let _ = writeln!(
        text,
        "… for tidewall, whose receiver polls for itself:  {}  {}/s",
        words(own),
        per_second(polling.goodput)
    );
    let _ = write!(
        text,
        "\nTo use it:\n  tidewall serve discard --interface IF --architecture softirq {}\n  \
         tidewall serve discard --interface IF {}\n",
        flags(tuned.best.map_or(tuned.predicted, |best| best.setting())),
        flags(own)
    );
    text += &wrap(
        "The costs are of this machine's veth. The default policy, adaptive, needs none of this: it \
         finds Bp and T as it goes.",
        0,
        80,
    );
    text += &wrap(QUEUE, 0, 80);
    for shortcoming in &tuned.shortcomings {
        let _ = writeln!(text, "could not be had: {shortcoming}");
    }
    text
}

fn table(tuned: &Tuned) -> String {
    let mut table = Table::of(
        2,
        ">Bp|>T µs|>frames a round|>measured/s|>predicted/s|>ratio|>mode|>idle %|>predicted %|>lost in buffer %",
    );
    let mut samples = tuned.measured.samples.clone();
    samples.sort_by_key(|sample| (sample.interval_us, sample.budget));
    for sample in &samples {
        let predicted = tuned.prediction(sample);
        table.row([
            sample.budget.to_string(),
            sample.interval_us.to_string(),
            format!("{:.0}", sample.frames / sample.rounds.max(1.0)),
            per_second(sample.goodput),
            per_second(predicted.goodput),
            ratio(sample.goodput, predicted.goodput),
            predicted.mode.number().to_string(),
            sample.idle.map_or("-".to_owned(), percent),
            percent(predicted.idle),
            percent(sample.overflowed / sample.frames.max(1.0)),
        ]);
    }
    table.text()
}

fn percent(share: f64) -> String {
    format!("{:.0}", share * 100.0)
}

fn ratio(above: f64, below: f64) -> String {
    if below > 0.0 {
        format!("{:.2}", above / below)
    } else {
        "-".to_owned()
    }
}

fn words(setting: Setting) -> String {
    format!(
        "Bp {}, T {} µs",
        setting.budget,
        setting.interrupt_interval.as_micros()
    )
}

fn flags(setting: Setting) -> String {
    format!(
        "--policy napi --budget {} --interval {}us",
        setting.budget,
        setting.interrupt_interval.as_micros()
    )
}

fn json_of(options: &Options, tuned: &Tuned) -> Value {
    let machine = &tuned.measured.machine;
    let setting = |setting: Setting| {
        json!({
            "budget": setting.budget,
            "interval_us": setting.interrupt_interval.as_micros() as u64,
        })
    };
    let prediction = |prediction: Prediction| {
        json!({
            "mode": prediction.mode.number(),
            "goodput": prediction.goodput,
            "idle": prediction.idle,
            "interrupts": prediction.interrupts,
            "buffer_overflows": prediction.buffer_overflows,
            "ring_overflows": prediction.ring_overflows,
        })
    };
    let sample = |sample: &Sample| json!({"measured": sample, "predicted": prediction(tuned.prediction(sample))});
    json!({
        "work": options.work,
        "payload": options.payload,
        "rate": options.rate,
        "machine_ns": {
            "protocol": machine.protocol.as_nanos() as u64,
            "application": machine.application.as_nanos() as u64,
            "switch_application": machine.switch_application.as_nanos() as u64,
            "switch_poller": machine.switch_poller.as_nanos() as u64,
            "interrupt": machine.interrupt.as_nanos() as u64,
            "application_quantum": machine.application_quantum.as_nanos() as u64,
        },
        "room": {"buffer": tuned.room.buffer, "ring": tuned.room.ring},
        "load": {"rate": tuned.load.rate, "burst": tuned.load.burst},
        "samples": tuned.measured.samples.iter().map(sample).collect::<Vec<_>>(),
        "best": tuned.best.as_ref().map(sample),
        "predicted_best": setting(tuned.predicted),
        "predicted_best_self_polling": setting(tuned.predicted_self_polling),
        "shortcomings": tuned.shortcomings,
    })
}
