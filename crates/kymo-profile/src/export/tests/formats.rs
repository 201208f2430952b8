//! A reader for each format.
use super::protobuf::Fields;
use super::*;
use crate::wall::{OFF_CPU, SpanState, State};
use std::io::Read as _;

fn unzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).expect("gzip");
    out
}

/// The stacks of a profile of pprof, by event.
fn stacks_of_pprof(bytes: &[u8], is_of_spans: bool) -> Vec<CountedStack> {
    let profile = Fields::of(&unzip(bytes));
    let strings = profile.texts(6);
    assert_eq!(strings[0], "");
    let types: Vec<String> =
        profile.messages(1).iter().map(|kind| strings[kind.number(1) as usize].clone()).collect();
    let functions: BTreeMap<u64, String> =
        profile.messages(5).iter().map(|f| (f.number(1), strings[f.number(2) as usize].clone())).collect();
    let locations: BTreeMap<u64, Vec<String>> = (profile.messages(4).iter())
        .map(|location| {
            let lines = location.messages(4);
            (location.number(1), lines.iter().map(|line| functions[&line.number(1)].clone()).collect())
        })
        .collect();
    let mut stacks = Vec::new();
    for sample in profile.messages(2) {
        let frames = sample.numbers(1).into_iter().flat_map(|id| locations[&id].clone());
        let mut names: Vec<String> = frames.collect();
        names.reverse();
        let values = sample.numbers(2);
        assert_eq!(values.len(), types.len());
        let width = if is_of_spans { 1 } else { 2 };
        for (values, types) in values.chunks(width).zip(types.chunks(width)) {
            let (event, names) = (types[width - 1].clone(), names.clone());
            stacks.push(CountedStack { event, names, samples: values[0], period: values[width - 1] });
        }
    }
    stacks.retain(|stack| stack.samples > 0);
    stacks
}

/// Checks that pprof's profile has the sums of the report, its threads, and whole references.
#[test]
fn pprof_has_the_sums_of_the_report() {
    each_recording(|name, samples| {
        let bytes = written(ExportFormat::Pprof, samples);
        assert_eq!(sums_of(stacks_of_pprof(&bytes, false)), reported(&samples.profile), "{name}");
        let profile = Fields::of(&unzip(&bytes));
        let strings = profile.texts(6);
        let mut threads = BTreeMap::<u64, u64>::new();
        for sample in profile.messages(2) {
            let labels = sample.messages(3);
            let tid = labels.iter().find(|label| strings[label.number(1) as usize] == "tid");
            let counts = sample.numbers(2).into_iter().step_by(2);
            *threads.entry(tid.expect("a thread").number(3)).or_default() += counts.sum::<u64>();
        }
        for thread in &samples.profile.threads {
            assert_eq!(threads[&(thread.tid as u64)], thread.samples, "{name}: {}", thread.tid);
        }
    });
}

/// Checks that folded stacks have the sums of the report.
#[test]
fn folded_stacks_have_the_sums_of_the_report() {
    each_recording(|name, samples| {
        let text = String::from_utf8(written(ExportFormat::Folded, samples)).expect("UTF-8");
        let count = |line: &str| line.rsplit_once(' ').expect("a count").1.parse::<u64>().expect("a number");
        let total: u64 = samples.profile.events.iter().map(|event| event.total_samples).sum();
        assert_eq!(text.lines().map(count).sum::<u64>(), total, "{name}");
    });
}

/// The samples of functions only, or what their periods sum to.
fn one_weight(functions: Functions, at: usize) -> BTreeMap<(String, String), [u64; 2]> {
    functions.into_iter().map(|(key, sums)| (key, [sums[at], sums[at + 1]])).collect()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().expect("a list").iter().map(|number| number.as_u64().expect("a number")).collect()
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// The stacks of a file of speedscope, whose weights are periods.
fn stacks_of_speedscope(samples: &ExportSamples<'_>) -> Vec<CountedStack> {
    let file: Value =
        serde_json::from_slice(&written(ExportFormat::Speedscope, samples)).expect("it is JSON");
    let frames = file["shared"]["frames"].as_array().expect("a list");
    let profiles = file["profiles"].as_array().expect("a list");
    assert_eq!(profiles.len(), samples.tracks().len());
    let mut stacks = Vec::new();
    for (profile, track) in profiles.iter().zip(samples.tracks()) {
        let weights = numbers(&profile["weights"]);
        let lists = profile["samples"].as_array().expect("a list");
        assert_eq!(lists.len(), weights.len());
        assert_eq!(profile["endValue"], weights.iter().sum::<u64>());
        for (list, weight) in lists.iter().zip(weights) {
            let names = numbers(list).into_iter().map(|frame| text(&frames[frame as usize]["name"]));
            let event = samples.event(track.event).name.clone();
            stacks.push(CountedStack { event, names: names.collect(), samples: weight, period: weight });
        }
    }
    stacks
}

/// Checks that the weights of speedscope's file have the sums of the report.
#[test]
fn speedscope_has_the_sums_of_the_report() {
    each_recording(|name, samples| {
        let found = sums_of(stacks_of_speedscope(samples));
        assert_eq!(one_weight(found, 2), one_weight(reported(&samples.profile), 2), "{name}");
    });
    with_wall(|samples| {
        let found = sums_of(stacks_of_speedscope(samples));
        assert_eq!(one_weight(found, 2), one_weight(reported(&samples.profile), 2));
    });
}

/// The stacks of a profile of the Firefox Profiler; the weights of spans are ns.
fn stacks_of_firefox(samples: &ExportSamples<'_>) -> Vec<CountedStack> {
    let file: Value =
        serde_json::from_slice(&unzip(&written(ExportFormat::Firefox, samples))).expect("it is JSON");
    let mut stacks = Vec::new();
    for (thread, track) in file["threads"].as_array().expect("a list").iter().zip(samples.tracks()) {
        let (of_samples, of_stacks) = (&thread["samples"], &thread["stackTable"]);
        for (row, innermost) in of_samples["stack"].as_array().expect("a list").iter().enumerate() {
            let (mut names, mut at) = (Vec::new(), innermost.as_u64());
            while let Some(stack) = at {
                let frame = of_stacks["frame"][stack as usize].as_u64().expect("a frame") as usize;
                let function = thread["frameTable"]["func"][frame].as_u64().expect("a function") as usize;
                let name = thread["funcTable"]["name"][function].as_u64().expect("a text") as usize;
                names.push(text(&thread["stringArray"][name]));
                at = of_stacks["prefix"][stack as usize].as_u64();
            }
            names.reverse();
            let weight = of_samples["weight"].get(row).and_then(Value::as_f64);
            let samples_of = weight.map_or(1, |ms| (ms * 1e6).round() as u64);
            let event = samples.event(track.event).name.clone();
            stacks.push(CountedStack { event, names, samples: samples_of, period: 0 });
        }
    }
    stacks
}

/// Checks that the samples of the Firefox Profiler's profile have the sums of the report, and that
/// waits are markers.
#[test]
fn firefox_has_the_sums_of_the_report() {
    each_recording(|name, samples| {
        let found = sums_of(stacks_of_firefox(samples));
        assert_eq!(one_weight(found, 0), one_weight(reported(&samples.profile), 0), "{name}");
    });
    with_wall(|samples| {
        let found = sums_of(stacks_of_firefox(samples));
        assert_eq!(one_weight(found, 0), one_weight(reported(&samples.profile), 0));
        let bytes = unzip(&written(ExportFormat::Firefox, samples));
        let file: Value = serde_json::from_slice(&bytes).expect("it is JSON");
        let threads = file["threads"].as_array().expect("a list");
        let markers: u64 = threads.iter().map(|t| t["markers"]["length"].as_u64().expect("a length")).sum();
        assert_eq!(markers, samples.profile.events[0].links.len() as u64);
        assert!(markers > 0);
    });
}

/// The stacks of trace events, from what the ends of slices say.
fn stacks_of_chrome(samples: &ExportSamples<'_>) -> Vec<CountedStack> {
    let file: Value = serde_json::from_slice(&written(ExportFormat::Chrome, samples)).expect("it is JSON");
    // Name, samples and periods of the slices in it.
    type Slice = (String, u64, u64);
    let mut open: BTreeMap<(i64, u64), Vec<Slice>> = BTreeMap::new();
    let mut last: BTreeMap<(i64, u64), f64> = BTreeMap::new();
    let mut stacks = Vec::new();
    for event in file["traceEvents"].as_array().expect("a list") {
        let track = (event["pid"].as_i64().expect("a process"), event["tid"].as_u64().expect("a thread"));
        let phase = text(&event["ph"]);
        if phase == "M" {
            continue;
        }
        let ts = event["ts"].as_f64().expect("a time");
        assert!(last.insert(track, ts).is_none_or(|last| last <= ts), "times of a track do not go back");
        let open = open.entry(track).or_default();
        match &*phase {
            "B" => open.push((text(&event["name"]), 0, 0)),
            "E" => {
                let names = open.iter().map(|(name, ..)| name.clone()).collect();
                let (_, inner_samples, inner_period) = open.pop().expect("a slice that began");
                let number = |key: &str| event["args"][key].as_u64().expect("a number");
                let (all, period) = (number("samples"), number("period"));
                if let Some((_, outer_samples, outer_period)) = open.last_mut() {
                    (*outer_samples, *outer_period) = (*outer_samples + all, *outer_period + period);
                }
                stacks.push(CountedStack {
                    event: samples.event((track.1 >> 22) as u32).name.clone(),
                    names,
                    samples: all - inner_samples,
                    period: period - inner_period,
                });
            }
            phase => panic!("{phase}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "every slice ends");
    stacks
}

/// Checks that the slices of trace events nest, and have the sums of the report.
#[test]
fn trace_events_have_the_sums_of_the_report() {
    each_recording(|name, samples| {
        assert_eq!(sums_of(stacks_of_chrome(samples)), reported(&samples.profile), "{name}");
    });
    with_wall(|samples| assert_eq!(sums_of(stacks_of_chrome(samples)), reported(&samples.profile)));
}

/// A function of callgrind: its own costs, and those of its calls.
#[derive(Default)]
struct Called {
    own: Vec<u64>,
    calls: Vec<u64>,
}

/// The functions of a callgrind file by module and name.
fn functions_of_callgrind(bytes: Vec<u8>) -> (Vec<String>, BTreeMap<(String, String), Called>) {
    let file = String::from_utf8(bytes).expect("UTF-8");
    let (mut events, mut names) = (Vec::new(), BTreeMap::<(&str, String), String>::new());
    let mut functions = BTreeMap::<(String, String), Called>::new();
    let (mut module, mut function, mut is_call) = (String::new(), String::new(), false);
    for line in file.lines() {
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let mut named = |kind: &'static str| {
            let (id, name) = value.split_once(' ').unwrap_or((value, ""));
            let known = names.entry((kind, id.to_owned())).or_insert_with(|| name.to_owned());
            known.clone()
        };
        match key {
            "ob" => module = named("ob"),
            "fn" => function = named("fn"),
            "fl" | "cfi" => _ = named("fl"),
            "cob" => _ = named("ob"),
            "cfn" => _ = named("fn"),
            "calls" => is_call = true,
            _ if line.starts_with("events: ") => events = line[8..].split(' ').map(str::to_owned).collect(),
            _ if line.starts_with(|first: char| first.is_ascii_digit()) => {
                let called = functions.entry((module.clone(), function.clone())).or_default();
                let costs = if is_call { &mut called.calls } else { &mut called.own };
                costs.resize(events.len(), 0);
                let numbers = line.split(' ').skip(1).map(|number| number.parse::<u64>().expect("a cost"));
                costs.iter_mut().zip(numbers).for_each(|(cost, number)| *cost += number);
                is_call = false;
            }
            _ => {
                let heads = ["# callgrind", "version: ", "creator: ", "cmd: ", "positions: ", "summary: "];
                assert!(line.is_empty() || heads.iter().any(|head| line.starts_with(head)), "{line:?}");
            }
        }
    }
    (events, functions)
}

/// Checks that functions of callgrind have the sums of the report, also those that call themselves.
#[test]
fn callgrind_has_the_sums_of_the_report() {
    let check = |name: &str, samples: &ExportSamples<'_>| {
        let (events, found) = functions_of_callgrind(written(ExportFormat::Callgrind, samples));
        let width = events.len() / samples.profile.events.len();
        let mut compared = 0;
        for (event_number, event) in samples.profile.events.iter().enumerate() {
            let totals = Totals::new(event, samples.profile.functions.len());
            for (number, function) in samples.profile.functions.iter().enumerate() {
                let name_of = |f: &Function| (crate::text::shown(&f.module).into_owned(), f.name.clone());
                let same = samples.profile.functions.iter().filter(|f| name_of(f) == name_of(function));
                if function.kind == FunctionKind::Comm || same.count() > 1 {
                    continue;
                }
                let (module, name_of) = (name_of(function).0, crate::text::shown(&function.name));
                let module = if module.is_empty() { "???".to_owned() } else { module };
                let at = event_number * width + width - 1;
                let cost = |costs: Option<&Vec<u64>>| costs.and_then(|c| c.get(at)).copied().unwrap_or(0);
                let outer = found.get(&(module.clone(), name_of.clone().into_owned()));
                // Calls within itself.
                let inner =
                    (2..).map_while(|depth| found.get(&(module.clone(), format!("{name_of}'{depth}"))));
                let own = cost(outer.map(|f| &f.own)) + inner.map(|f| cost(Some(&f.own))).sum::<u64>();
                let total = cost(outer.map(|f| &f.own)) + cost(outer.map(|f| &f.calls));
                let expected = (totals.own[number].period, totals.total[number].period);
                assert_eq!((own, total), expected, "{name}: {name_of}");
                compared += 1;
            }
        }
        assert!(compared > 0, "{name}");
        assert_no_function_has_more_than_all(samples, &found);
    };
    each_recording(check);
    with_wall(|samples| check("wall", samples));
}

/// Checks what readers show as inclusive cost: own and calls.
fn assert_no_function_has_more_than_all(
    samples: &ExportSamples<'_>,
    functions: &BTreeMap<(String, String), Called>,
) {
    let (places, _) = samples.value_places();
    for (place, event) in places.into_iter().zip(&samples.profile.events) {
        for ((_, name), called) in functions {
            let cost = |costs: &Vec<u64>| costs.get(place).copied().unwrap_or(0);
            let inclusive = cost(&called.own) + cost(&called.calls);
            assert!(inclusive <= event.total_period, "{name}: {inclusive} of {}", event.total_period);
        }
    }
}

/// Checks functions that call each other ten deep, and one that calls itself: none has more than
/// all there is, and the outermost call has what is below it, once.
#[test]
fn callgrind_of_deep_recursion_stays_below_all() {
    let deep = ["even;odd"; 10].join(";");
    let text = format!("p;main;{deep};leaf 30\np;main;{deep} 36\np;main;self;self;self;self 10\n");
    with_imported(&text, |samples| {
        let (_, found) = functions_of_callgrind(written(ExportFormat::Callgrind, samples));
        assert_no_function_has_more_than_all(samples, &found);
        let inclusive = |name: &str| {
            let called = &found[&("[imported]".to_owned(), name.to_owned())];
            [&called.own, &called.calls].into_iter().flatten().sum::<u64>()
        };
        let names = ["main", "even", "even'2", "odd'10", "self", "self'2", "self'4", "leaf"];
        assert_eq!(names.map(inclusive), [76, 66, 66, 66, 10, 10, 10, 30]);
    });
}

/// Checks that formats with units and weights have those of an imported profile: its values, which
/// are sums, and not the number of its records.
#[test]
fn sums_of_an_imported_profile_are_weights() {
    with_imported("shop;main;timer 10000055264\nshop;main 5\n", |samples| {
        assert_eq!(samples.value_places(), (vec![0], 1));
        let json = |bytes: &[u8]| -> Value { serde_json::from_slice(bytes).expect("JSON") };
        let speedscope = json(&written(ExportFormat::Speedscope, samples));
        let weights = [10_000_055_264_u64, 5];
        assert_eq!(speedscope["profiles"][0]["weights"], serde_json::json!(weights));
        let mut firefox = Vec::new();
        let bytes = written(ExportFormat::Firefox, samples);
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut firefox)
            .expect("gzip");
        let table = &json(&firefox)["threads"][0]["samples"];
        assert_eq!(
            (&table["weight"], &table["weightType"]),
            (&serde_json::json!(weights), &"samples".into())
        );
        let mut picture = Vec::new();
        flamegraph(&samples.profile, &samples.profile.events[0], &mut picture).expect("a picture");
        let picture = String::from_utf8(picture).expect("UTF-8");
        assert!(picture.contains("samples: 10000055269 events"), "{picture}");
    });
}

/// Checks that events whose periods are times are in ns though no clock is in their attributes:
/// waits and locks, of kymo and perf.
#[test]
fn waits_and_locks_are_times() {
    let attr = kymo_data::Attr { kind: 1, config: 9, ..Default::default() };
    let mut event = kymo_data::Event::new(attr, Vec::new(), 0);
    for (name, unit) in [
        ("offcpu-time", "ns"),
        ("lock-wait", "ns"),
        ("lock-holds", "ns"),
        ("offcpu-wakeup", ""),
        ("lock-wake", ""),
        ("dummy", ""),
    ] {
        event.name = name.to_owned();
        assert_eq!(unit_of(&event), unit, "{name}");
    }
    (event.unit, event.scale) = (Some("Joules".to_owned()), Some(0.25));
    assert_eq!(unit_of(&event), "", "a unit of the product with a factor");
}

/// Checks that a resource of OTLP has the key by which backends group, the name of the process.
#[test]
fn otlp_resources_name_their_service() {
    each_recording(|name, samples| {
        let request = Fields::of(&written(ExportFormat::Otlp, samples));
        for resource in request.messages(1) {
            let attributes = resource.message(1).messages(1);
            let value = |key: &str| {
                let found = attributes.iter().find(|attribute| attribute.text(1) == key);
                found.map(|attribute| attribute.message(2).text(1))
            };
            assert!(value("service.name").is_some_and(|service| !service.is_empty()), "{name}");
            assert_eq!(value("service.name"), value("process.executable.name"), "{name}");
        }
    });
}

/// Checks that a request of OTLP has the sums of the report, and that each table begins with an
/// empty entry.
#[test]
fn otlp_has_the_sums_of_the_report() {
    let check = |name: &str, samples: &ExportSamples<'_>| {
        let request = Fields::of(&written(ExportFormat::Otlp, samples));
        let dictionary = request.message(2);
        let strings = dictionary.texts(5);
        assert_eq!(strings[0], "");
        for table in [1, 2, 3, 4, 6, 7] {
            assert!(dictionary.all_bytes(table)[0].is_empty(), "{name}: table {table}");
        }
        let [locations, functions, attributes, stacks] = [2, 3, 6, 7].map(|table| dictionary.messages(table));
        let text = |number: u64| strings[number as usize].clone();
        let (mut found, mut by_thread) = (Vec::new(), BTreeMap::<u64, u64>::new());
        for resource in request.messages(1) {
            for profile in resource.message(2).messages(2) {
                assert_eq!(profile.all_bytes(7)[0].len(), 16);
                for sample in profile.messages(2) {
                    let stack = stacks[sample.number(1) as usize].numbers(1);
                    let lines = stack.iter().flat_map(|at| locations[*at as usize].messages(3));
                    let mut names: Vec<String> =
                        lines.map(|line| text(functions[line.number(1) as usize].number(1))).collect();
                    names.reverse();
                    let values = sample.numbers(4);
                    let of_sample = sample.numbers(2).into_iter().map(|at| &attributes[at as usize]);
                    for attribute in of_sample.filter(|at| text(at.number(1)) == "thread.id") {
                        *by_thread.entry(attribute.message(2).number(3)).or_default() += values.len() as u64;
                    }
                    let event = text(profile.message(1).number(1));
                    let (samples, period) = (values.len() as u64, values.iter().sum());
                    found.push(CountedStack { event, names, samples, period });
                }
            }
        }
        let (found, expected) = (sums_of(found), reported(&samples.profile));
        if samples.is_of_spans() {
            return assert_eq!(one_weight(found, 2), one_weight(expected, 2));
        }
        assert_eq!(found, expected, "{name}");
        for thread in &samples.profile.threads {
            assert_eq!(by_thread[&(thread.tid as u64)], thread.samples, "{name}");
        }
    };
    each_recording(check);
    with_wall(|samples| check("wall", samples));
}

/// Checks that a request of OTLP has no entry in its dictionary that none of its samples needs.
fn samples_name_all_of_the_dictionary(request: &Fields) {
    let dictionary = request.message(2);
    let [mappings, locations, functions, stacks] = [1, 2, 3, 7].map(|table| dictionary.messages(table));
    let profiles = request.messages(1).into_iter().flat_map(|of_process| of_process.message(2).messages(2));
    let samples = profiles.flat_map(|profile| profile.messages(2));
    let of_stacks = stacks.iter().flat_map(|stack| stack.numbers(1)).collect();
    let of_mappings = locations.iter().map(|location| location.number(1)).collect();
    let lines = locations.iter().flat_map(|location| location.messages(3));
    let tables: [(&str, &[Fields], BTreeSet<u64>); 4] = [
        ("stacks", &stacks, samples.map(|sample| sample.number(1)).collect()),
        ("locations", &locations, of_stacks),
        ("functions", &functions, lines.map(|line| line.number(1)).collect()),
        ("mappings", &mappings, of_mappings),
    ];
    for (name, table, mut named) in tables {
        // The first entry stands for none.
        named.insert(0);
        let all: BTreeSet<u64> = (0..table.len() as u64).collect();
        assert_eq!(named, all, "{name}");
    }
}

/// Checks that a request of OTLP says of waits what the threads waited for and who ended them, and
/// that it has the rows that were asked for and no others.
#[test]
fn otlp_says_what_threads_waited_for() {
    let request_of = |samples: &ExportSamples<'_>, filter| {
        let mut bytes = Vec::new();
        otlp(samples, filter, &mut bytes).expect("memory takes everything");
        let request = Fields::of(&bytes);
        samples_name_all_of_the_dictionary(&request);
        request
    };
    with_wall(|samples| {
        for filter in [RowFilter::All, RowFilter::OffCpu] {
            let mut expected = BTreeMap::<_, u64>::new();
            for row in samples.by_time().filter(|row| filter.keeps(samples, row)) {
                let state = row.state.map_or("none".to_owned(), SpanState::name);
                let waker = samples.waker(&row).map(str::to_owned);
                *expected.entry((state, waker)).or_default() += row.period;
            }
            let request = request_of(samples, filter);
            let strings = request.message(2).texts(5);
            let attributes = request.message(2).messages(6);
            let (mut found, mut events) = (BTreeMap::<_, u64>::new(), BTreeSet::new());
            for resource in request.messages(1) {
                for profile in resource.message(2).messages(2) {
                    events.insert(strings[profile.message(1).number(1) as usize].clone());
                    for sample in profile.messages(2) {
                        let numbers = sample.numbers(2);
                        let text = |key: &str| {
                            let named =
                                |at: &&u64| strings[attributes[**at as usize].number(1) as usize] == key;
                            let at = numbers.iter().find(named)?;
                            Some(attributes[*at as usize].message(2).text(1))
                        };
                        let state = text("thread.state").expect("a state");
                        let sum: u64 = sample.numbers(4).iter().sum();
                        *found.entry((state, text("thread.waker"))).or_default() += sum;
                    }
                }
            }
            assert_eq!(found, expected);
            let is_off_cpu = filter == RowFilter::OffCpu;
            let event = if is_off_cpu { OFF_CPU } else { &samples.event(0).name };
            assert_eq!(events, BTreeSet::from([event.to_owned()]));
            let states = found.keys().map(|(state, _)| state.as_str());
            let states = BTreeSet::from_iter(states.filter(|state| *state != State::Running.name()));
            assert!(states.len() > 1, "{states:?}");
            assert!(found.keys().any(|(_, waker)| waker.is_some()));
        }
        // No span is a record of waits, and no sample is a wait.
        assert!(!request_of(samples, RowFilter::Samples).messages(1).is_empty());
    });
    each_recording(|name, samples| {
        assert!(request_of(samples, RowFilter::OffCpu).messages(1).is_empty(), "{name}");
    });
}

/// Checks that a trace of Perfetto has the samples of the report, with counters that grow by the
/// periods.
#[test]
fn perfetto_has_the_sums_of_the_report() {
    each_recording(|name, samples| {
        let trace = Fields::of(&written(ExportFormat::Perfetto, samples));
        let [mut names, mut frames, mut stacks] = [const { BTreeMap::<(u64, u64), Vec<u64>>::new() }; 3];
        let (mut texts, mut found) = (BTreeMap::new(), Vec::new());
        let mut counters = BTreeMap::<(u64, u64), u64>::new();
        for packet in trace.messages(1) {
            let sequence = packet.number(10);
            let data = packet.message(12);
            for entry in data.messages(5) {
                names.insert((sequence, entry.number(1)), vec![entry.number(1)]);
                texts.insert((sequence, entry.number(1)), entry.text(2));
            }
            for entry in data.messages(6) {
                assert!(names.contains_key(&(sequence, entry.number(2))), "names come before frames");
                frames.insert((sequence, entry.number(1)), vec![entry.number(2)]);
            }
            for entry in data.messages(7) {
                stacks.insert((sequence, entry.number(1)), entry.separate_numbers(2));
            }
            let sample = packet.message(66);
            if sample.number(2) == 0 {
                continue;
            }
            let stack = &stacks[&(sequence, sample.number(4))];
            let names = stack.iter().map(|frame| texts[&(sequence, frames[&(sequence, *frame)][0])].clone());
            let counter = counters.entry((sequence, sample.number(1))).or_default();
            let period = sample.number(6) - *counter;
            *counter = sample.number(6);
            let event = samples.event(sequence as u32 - 1).name.clone();
            found.push(CountedStack { event, names: names.collect(), samples: 1, period });
        }
        assert_eq!(sums_of(found), reported(&samples.profile), "{name}");
    });
}

/// Checks that the states of threads are slices that follow each other.
#[test]
fn perfetto_has_states_as_slices() {
    with_wall(|samples| {
        let trace = Fields::of(&written(ExportFormat::Perfetto, samples));
        let (mut open, mut states) = (BTreeMap::<u64, u64>::new(), BTreeSet::new());
        for packet in trace.messages(1) {
            let event = packet.message(11);
            let (track, at) = (event.number(11), packet.number(8));
            match event.number(9) {
                1 => {
                    states.insert(event.number(10));
                    assert_eq!(open.insert(track, at), None, "one state at a time");
                }
                2 => assert!(open.remove(&track).expect("a state that began") <= at),
                _ => {}
            }
        }
        assert!(open.is_empty() && states.len() > 2, "{states:?}");
    });
}

/// Checks that the first mapping of pprof's profile, which pprof takes for the program, is no
/// library and not the kernel.
#[test]
fn pprof_begins_with_the_program() {
    each_recording(|name, samples| {
        let profile = Fields::of(&unzip(&written(ExportFormat::Pprof, samples)));
        let strings = profile.texts(6);
        let files =
            profile.messages(3).into_iter().map(|mapping| strings[mapping.number(5) as usize].clone());
        let files: Vec<String> = files.collect();
        let is_program = |file: &String| !file.contains(".so") && !file.starts_with('[');
        assert_eq!(is_program(&files[0]), files.iter().any(is_program), "{name}: {files:?}");
    });
}
