//! The kernel's interrupts and task switches: they hit whatever runs, at moments that have nothing
//! to do with the program, and are not judged as functions of it.
use super::stacks::{FunctionLabel, SharedStacks};
use rustc_hash::FxHashSet;

/// Where the kernel is entered by an interrupt, and where it handles one.
const ENTRIES: [&str; 14] = [
    "asm_sysvec_",
    "sysvec_",
    "__sysvec_",
    "asm_common_interrupt",
    "common_interrupt",
    "__common_interrupt",
    "asm_call_irq_on_stack",
    "apic_timer_interrupt",
    "smp_apic_timer_interrupt",
    "el0_irq",
    "el1_irq",
    "el0t_64_irq",
    "el1h_64_irq",
    "gic_handle_irq",
];
/// Where interrupts are allowed again, so that a clock's samples of them are taken there; and the
/// work that interrupts leave behind.
const FUNCTIONS: [&str; 20] = [
    "irqentry_exit",
    "irqentry_exit_to_user_mode",
    "irqentry_enter",
    "irq_exit_rcu",
    "__irq_exit_rcu",
    "ret_from_intr",
    "finish_task_switch",
    "__softirqentry_text_start",
    "__do_softirq",
    "do_softirq",
    "handle_softirqs",
    "run_ksoftirqd",
    "hrtimer_interrupt",
    "__hrtimer_run_queues",
    "tick_sched_timer",
    "tick_sched_handle",
    "tick_nohz_handler",
    "update_process_times",
    "scheduler_tick",
    "sched_tick",
];
/// A function is part of interrupts if so much of its cost lies below an entry.
const LEAST_COVERED: f64 = 0.95;

/// The functions that only interrupts and task switches run. `costs`: of each node, on both sides.
pub(crate) fn functions(stacks: &SharedStacks, costs: [&[f64]; 2]) -> FxHashSet<u32> {
    let is_entry: Vec<bool> = stacks.functions.iter().map(is_entry).collect();
    let mut below: Vec<bool> = Vec::with_capacity(stacks.nodes.len());
    let mut sums = vec![(0.0, 0.0); stacks.functions.len()];
    for (at, node) in stacks.nodes.iter().enumerate() {
        // Parents come first.
        let is_below = below.get(node.parent as usize).copied().unwrap_or(false);
        below.push(is_below || is_entry[node.function as usize]);
        let cost: f64 = costs.iter().filter_map(|side| side.get(at)).sum();
        let (all, of_entries) = &mut sums[node.function as usize];
        *all += cost;
        *of_entries += if below[at] { cost } else { 0.0 };
    }
    let is_of_interrupts = |(at, label): &(usize, &FunctionLabel)| {
        let (all, of_entries) = sums[*at];
        is_kernel(label)
            && (is_entry[*at]
                || FUNCTIONS.contains(&&*label.name)
                || all > 0.0 && of_entries >= LEAST_COVERED * all)
    };
    stacks.functions.iter().enumerate().filter(is_of_interrupts).map(|(at, _)| at as u32).collect()
}

fn is_kernel(label: &FunctionLabel) -> bool {
    label.module.starts_with("[kernel") || label.module.starts_with("[guest.kernel")
}

fn is_entry(label: &FunctionLabel) -> bool {
    let matches = |entry: &str| match entry.ends_with('_') {
        true => label.name.starts_with(entry),
        false => label.name == entry,
    };
    is_kernel(label) && ENTRIES.iter().any(|entry| matches(entry))
}

/// What is said of the rows that are not judged, with the part of each side's cost.
pub(crate) fn note(mut names: Vec<String>, (old, new): (f64, f64)) -> Option<String> {
    const SHOWN: usize = 3;
    names.sort_unstable();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| {
        format!(
            "interrupts and task switches of the kernel ({}{more}: {:.1} % of the old side's cost, {:.1} % of the new one's) are the machine's work, and are not judged",
            names.join(", "),
            100.0 * old,
            100.0 * new
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::stacks::NO_NODE;
    use super::*;

    /// Checks that functions of interrupts are known by name and by their callers, and that those
    /// which the program calls, too, and a program's own ones of such names, are not.
    #[test]
    fn interrupts_are_no_functions_of_the_program() {
        let mut stacks = SharedStacks::new();
        let mut costs = Vec::new();
        for (path, cost) in [
            ("app:main", 1.0),
            ("app:main [kernel.kallsyms]:irqentry_exit_to_user_mode", 1.0),
            ("app:main [kernel.kallsyms]:finish_task_switch.isra.0", 1.0),
            ("app:main [kernel.kallsyms]:asm_sysvec_apic_timer_interrupt [kernel.kallsyms]:rcu_core", 1.0),
            ("app:main [kernel.kallsyms]:asm_sysvec_apic_timer_interrupt [kernel.kallsyms]:memcpy", 1.0),
            ("app:main [kernel.kallsyms]:do_syscall_64 [kernel.kallsyms]:memcpy", 1.0),
            ("app:main app:scheduler_tick", 1.0),
        ] {
            let mut node = NO_NODE;
            for frame in path.split(' ') {
                let (module, name) = frame.split_once(':').expect("a module");
                let function = stacks.function(module, name);
                node = stacks.step(node, function);
            }
            costs.resize(stacks.nodes.len(), 0.0);
            costs[node as usize] += cost;
        }
        let mut found: Vec<&str> = functions(&stacks, [&costs, &costs])
            .iter()
            .map(|at| &*stacks.functions[*at as usize].name)
            .collect();
        found.sort_unstable();
        let expected = [
            "asm_sysvec_apic_timer_interrupt",
            "finish_task_switch",
            "irqentry_exit_to_user_mode",
            "rcu_core",
        ];
        assert_eq!(found, expected);
    }
}
