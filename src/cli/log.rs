//! `tidegate log`: the audit log, event by event.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use clap::Args;

use super::Outcome;
use super::history::{HistoryArgs, bytes, destination, quoted, unreadable};
use super::output::complain;
use crate::audit::Line;
use crate::error_chain;

const EXAMPLE: &str = "Example:
  tidegate log --sandbox agent-7 --denied --follow

Exit status: 0 read to the end, 1 the log cannot be read, 2 usage or config.";

/// How long to wait for lines that are not there yet.
const PAUSE: Duration = Duration::from_millis(200);

/// Read the audit log: one line an event, files put aside included
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Log {
    #[command(flatten)]
    history: HistoryArgs,
    /// Only what was denied or cut
    #[arg(long)]
    denied: bool,
    /// Wait for what comes
    #[arg(long)]
    follow: bool,
    /// Print the lines as they are written: JSON
    #[arg(long)]
    json: bool,
}

impl Log {
    pub(super) fn run(self) -> Outcome {
        let mut history = match self.history.open() {
            Ok(history) => history,
            Err(error) => {
                complain("log", error_chain(&error));
                return error.outcome();
            }
        };
        let mut out = io::BufWriter::new(io::stdout().lock());
        loop {
            match history.next_line() {
                Ok(Some(text)) => {
                    // A reader that has gone (`| head`) is no error of ours.
                    if self.show(&mut out, text).is_err() {
                        return Outcome::Done;
                    }
                }
                Ok(None) => {
                    if out.flush().is_err() || !self.follow {
                        return Outcome::Done;
                    }
                    std::thread::sleep(PAUSE);
                    if let Err(error) = history.catch_up() {
                        complain("log", unreadable(&error));
                        return Outcome::Failed;
                    }
                }
                Err(error) => {
                    complain("log", unreadable(&error));
                    return Outcome::Failed;
                }
            }
        }
    }

    fn show(&self, out: &mut impl io::Write, text: &[u8]) -> io::Result<()> {
        let Some(line) = Line::parse(text) else { return Ok(()) };
        if !self.history.wants(&line) || (self.denied && !line.is_denied()) {
            return Ok(());
        }
        // Every line of ours is printable ASCII: what is not was written by somebody else.
        if self.json && text.iter().all(|byte| matches!(byte, 0x20..=0x7e)) {
            out.write_all(text)?;
            return out.write_all(b"\n");
        }
        if self.json { Ok(()) } else { writeln!(out, "{}", row(&line)) }
    }
}

/// One event for a reader.
pub(crate) fn row(line: &Line) -> String {
    let mut row = quoted(&line.ts);
    match line.event.as_str() {
        "decision" | "close" | "repeated" => {
            let what = if line.event == "close" { "close" } else { text(line.decision.as_deref()) };
            let _ = write!(row, "  {what:<5}");
            let sandbox = line.sandbox.as_deref().map_or_else(|| "-".to_owned(), quoted);
            let _ = write!(row, "  {sandbox}  {:<7}  {}", text(line.inbound.as_deref()), asked(line));
            outcome(&mut row, line);
        }
        _ => {
            let _ = write!(row, "  {}", quoted(&line.event));
            let told = [&line.sandbox, &line.change, &line.check];
            for part in told.into_iter().flatten() {
                let _ = write!(row, "  {}", quoted(part));
            }
            if let Some(status) = line.status {
                let _ = write!(row, "  status {status}");
            }
            if let Some(ok) = line.ok {
                row.push_str(if ok { "  ok" } else { "  failed" });
            }
            if let Some(generation) = line.policy_generation {
                let _ = write!(row, "  generation {generation}");
            }
            if let Some(detail) = &line.detail {
                let _ = write!(row, "  {}", quoted(detail));
            }
        }
    }
    row
}

/// A word of a closed set; what else stands there is not shown.
fn text(word: Option<&str>) -> &str {
    word.filter(|word| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')).unwrap_or("-")
}

fn asked(line: &Line) -> String {
    let mut asked = match &line.host {
        Some(host) => destination(host, line.port),
        None => "(any)".to_owned(),
    };
    if let (Some(method), Some(path)) = (&line.method, &line.path) {
        asked = format!("{} {asked}{}", quoted(method), quoted(path));
    }
    if let Some(qtype) = &line.qtype {
        let _ = write!(asked, " {}", text(Some(qtype)));
    }
    asked
}

fn outcome(row: &mut String, line: &Line) {
    for reason in [&line.reason, &line.would_deny].into_iter().flatten() {
        let _ = write!(row, "  {}", text(Some(reason)));
    }
    if let Some(rcode) = &line.rcode {
        let _ = write!(row, "  {}", text(Some(rcode)));
    }
    if let Some(rule) = &line.rule {
        let _ = write!(row, "  by {}", quoted(rule));
    }
    if let Some(addr) = &line.addr {
        let _ = write!(row, "  at {}", quoted(addr));
    }
    if let Some(name) = &line.sni {
        let _ = write!(row, "  sni {}", quoted(name));
    }
    if let (Some(up), Some(down)) = (line.bytes_up, line.bytes_down) {
        let _ = write!(row, "  up {}, down {}", bytes(up), bytes(down));
    }
    if let Some(duration) = line.duration_ms {
        let _ = write!(row, "  {duration} ms");
    }
    if line.event == "repeated" {
        let _ = write!(row, "  {} times", line.count.unwrap_or(0));
    } else if let Some(id) = &line.id {
        let _ = write!(row, "  {}", text(Some(id)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        row(&Line::parse(text.as_bytes()).expect("a line"))
    }

    #[test]
    fn an_event_is_one_row() {
        let decision = r#"{"v":1,"ts":"T","event":"decision","id":"01H","sandbox":"a","inbound":"connect",
            "host":"x.example","port":443,"decision":"deny","reason":"not_listed","rule":null,"count":1}"#;
        assert_eq!(shown(decision), "T  deny   a  connect  x.example:443  not_listed  01H");
        let close = r#"{"v":1,"ts":"T","event":"close","id":"01H","sandbox":"a","inbound":"socks5",
            "host":"2001:db8::1","port":22,"decision":"allow","reason":null,"rule":"base.allow[0]",
            "addr":"2001:db8::1","bytes_up":10,"bytes_down":2048,"duration_ms":7}"#;
        assert_eq!(
            shown(close),
            "T  close  a  socks5   [2001:db8::1]:22  by base.allow[0]  at 2001:db8::1  up 10 B, down 2.0 KiB  7 ms  01H"
        );
        let reload = r#"{"v":1,"ts":"T","event":"reload","policy_generation":2,"ok":false,"detail":"a b"}"#;
        assert_eq!(shown(reload), "T  reload  failed  generation 2  \"a b\"");
    }

    #[test]
    fn nothing_in_a_line_reaches_the_terminal_raw() {
        let fields = [
            "ts", "event", "id", "sandbox", "inbound", "host", "decision", "reason", "rule", "addr", "rcode",
        ];
        for event in ["decision", "sandbox"] {
            for field in fields {
                let mut line = serde_json::json!({"ts": "T", "event": event});
                line[field] = "\u{1b}]0;x\u{7}\u{202e}\n".into();
                let row = shown(&line.to_string());
                assert!(row.bytes().all(|byte| matches!(byte, 0x20..=0x7e)), "{field}: {row:?}");
            }
        }
    }
}
