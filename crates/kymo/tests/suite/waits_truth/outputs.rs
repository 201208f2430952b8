//! The time of threads by state, as each output has it.

pub(super) mod by_state {
    use std::collections::BTreeMap;
    use std::path::Path;

    use serde_json::Value;

    use crate::tools::{kymo, text};

    type States = BTreeMap<String, u64>;

    /// Idle states are those that they are named by.
    fn add(states: &mut States, state: &str, ns: u64) {
        if ns > 0 {
            *states.entry(state.strip_prefix("idle: ").unwrap_or(state).to_owned()).or_default() += ns;
        }
    }

    /// Without what is no wait.
    pub(crate) fn waiting(states: &States) -> States {
        let is_wait = |state: &str| !["running", "runnable"].contains(&state);
        states.iter().filter(|(state, _)| is_wait(state)).map(|(state, ns)| (state.clone(), *ns)).collect()
    }

    pub(crate) fn of_json(file: &Path) -> States {
        let report = kymo().succeed(["report", "--wall", "--json", "-i", text(file)]).json();
        serde_json::from_value(report["states"].clone()).expect("states")
    }

    /// Checks that each state's share is printed.
    pub(crate) fn is_printed(file: &Path, states: &States) {
        let printed = kymo().succeed(["report", "--wall", "-i", text(file)]).stdout;
        let total: u64 = states.values().sum();
        for (state, ns) in states {
            let share = format!("{:.2}%  {state}", 100.0 * *ns as f64 / total as f64);
            assert!(printed.contains(&share), "no {share:?}: {printed}");
        }
    }

    pub(crate) fn of_query(file: &Path) -> States {
        let answer = kymo().succeed(["query", "--json", text(file), "waits 1000"]).json();
        let mut states = States::new();
        for row in answer["waits"]["rows"].as_array().expect("a list") {
            add(
                &mut states,
                row["state"].as_str().expect("text"),
                row["time_ns"].as_u64().expect("a number"),
            );
        }
        waiting(&states)
    }

    pub(crate) fn of_folded(file: &Path) -> States {
        let mut states = States::new();
        for line in kymo().succeed(["export", "-q", "--to", "folded", "--wall", text(file)]).stdout.lines() {
            let (stack, ns) = line.rsplit_once(' ').expect("a number at the end");
            let state = stack.rsplit(';').next().expect("a frame");
            add(&mut states, state, ns.parse().expect("a number"));
        }
        states
    }

    pub(crate) fn of_parquet(file: &Path, folder: &Path) -> States {
        let out = folder.join("profiles");
        kymo().succeed(["export", "-q", "--to", "parquet", "--wall", "-o", text(&out), text(file)]);
        crate::dataset::time_by_state(&out)
    }

    /// The page's data: each stack of wall time ends with the state.
    pub(crate) fn of_view(file: &Path, folder: &Path) -> States {
        let page = folder.join("page.html");
        kymo().succeed(["view", "-q", "--bundle", text(&page), text(file)]);
        let page = std::fs::read_to_string(page).expect("the page");
        let data = page.split("id=\"profile\">").nth(1).and_then(|rest| rest.split("</script>").next());
        let data: Value = serde_json::from_str(data.expect("the data")).expect("JSON");
        let nodes = &data["events"][0]["nodes"];
        let names = data["functions"]["name"].as_array().expect("names");
        let kinds = data["functions"]["kind"].as_str().expect("kinds").as_bytes();
        let periods = if nodes["period"].is_null() { &nodes["samples"] } else { &nodes["period"] };
        let mut states = States::new();
        for (function, ns) in column(&nodes["function"]).zip(column(periods)) {
            let at = function as usize;
            if kinds.get(at) == Some(&b's') {
                add(&mut states, names[at].as_str().expect("a name"), ns);
            } else {
                assert_eq!(ns, 0, "a stack without a state");
            }
        }
        states
    }

    /// The numbers of a packed column: LEB128 in base64.
    fn column(packed: &Value) -> impl Iterator<Item = u64> {
        let digit = |byte: u8| match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        let text = packed.as_str().expect("a column").trim_end_matches('=').bytes();
        let digits: Vec<u8> = text.map(digit).collect();
        let group = |four: &[u8]| {
            let bits = four.iter().fold(0_u32, |bits, digit| bits << 6 | u32::from(*digit));
            let bits = bits << (6 * (4 - four.len()));
            bits.to_be_bytes()[1..four.len()].to_vec()
        };
        let bytes: Vec<u8> = digits.chunks(4).flat_map(group).collect();
        numbers(&bytes).into_iter()
    }

    fn numbers(mut bytes: &[u8]) -> Vec<u64> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            all.push(number(&mut bytes));
        }
        all
    }

    fn number(bytes: &mut &[u8]) -> u64 {
        let length = 1 + bytes.iter().take_while(|byte| **byte & 128 != 0).count();
        let (own, rest) = bytes.split_at(length);
        *bytes = rest;
        own.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 127))
    }

    /// The fields of a message of protobuf: number and bytes; of a number its own bytes.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let key = number(&mut bytes);
            let length = match key & 7 {
                0 => 1 + bytes.iter().take_while(|byte| **byte & 128 != 0).count(),
                1 => 8,
                5 => 4,
                _ => number(&mut bytes) as usize,
            };
            let (own, rest) = bytes.split_at(length);
            all.push((key >> 3, own));
            bytes = rest;
        }
        all
    }

    fn parts(message: &[u8], field: u64) -> impl Iterator<Item = &[u8]> {
        fields(message).into_iter().filter(move |(number, _)| *number == field).map(|(_, bytes)| bytes)
    }

    /// Samples say what their thread did in the attribute `thread.state`.
    pub(crate) fn of_otlp(file: &Path) -> States {
        let out = file.with_extension("otlp");
        kymo().succeed(["export", "-q", "--to", "otlp", "--wall", "-o", text(&out), text(file)]);
        let request = std::fs::read(out).expect("the file");
        let dictionary = parts(&request, 2).next().expect("a dictionary");
        let strings: Vec<&[u8]> = parts(dictionary, 5).collect();
        let attribute = |message: &[u8]| {
            let key = parts(message, 1).next().map_or(0, |key| numbers(key)[0]);
            let value = parts(message, 2).next().and_then(|value| parts(value, 1).next()).unwrap_or(&[]);
            (strings[key as usize] == b"thread.state").then(|| String::from_utf8_lossy(value).into_owned())
        };
        let attributes: Vec<Option<String>> = parts(dictionary, 6).map(attribute).collect();
        let mut states = States::new();
        let resources = parts(&request, 1);
        let profiles = resources.flat_map(|of| parts(of, 2)).flat_map(|scope| parts(scope, 2));
        for sample in profiles.flat_map(|profile| parts(profile, 2)) {
            let own = parts(sample, 2).flat_map(numbers);
            let state = own.filter_map(|at| attributes[at as usize].as_deref()).next().expect("a state");
            add(&mut states, state, parts(sample, 4).flat_map(numbers).sum());
        }
        states
    }
}
