# Functions of all shapes, for tests of probes. Each says what it returns for its argument in edi.
        .intel_syntax noprefix
        .macro FN name
        .p2align 4
        .globl \name
        .type \name, @function
\name:
        .endm
        .macro END name
        .size \name, . - \name
        .endm

        .text
# n + 1, after an instruction of each length that fits before the fifth byte
FN nop_first
        nop
        lea eax, [rdi + 1]
        ret
END nop_first

FN push_first
        push rbp
        mov rbp, rsp
        sub rsp, 0x20
        mov [rbp - 8], rdi
        mov eax, [rbp - 8]
        inc eax
        leave
        ret
END push_first

FN long_first
        mov eax, 1
        add eax, edi
        ret
END long_first

FN marked
        endbr64
        lea eax, [rdi + 1]
        nop
        nop
        ret
END marked

# Nothing but a mark and a return; rax is the caller's.
FN marked_short
        endbr64
        ret
END marked_short

FN only_return
        ret
END only_return

FN data_first
        mov eax, [rip + one]
        add eax, edi
        ret
END data_first

FN address_first
        push rbx
        lea rbx, [rip + one]
        mov eax, [rbx]
        add eax, edi
        pop rbx
        ret
END address_first

# Compares an address that it has with its own
FN own_address
        push rbx
        lea rax, [rip + own_address]
        lea rdx, [rip + own_address_at]
        mov rdx, [rdx]
        xor eax, edx
        lea eax, [rax + rdi + 1]
        pop rbx
        ret
END own_address

FN call_first
        call helper
        ret
END call_first

FN call_second
        sub rsp, 8
        call helper
        add rsp, 8
        ret
END call_second

FN call_memory_first
        call [rip + helper_at]
        ret
END call_memory_first

FN call_register
        push rbx
        lea rax, [rip + helper]
        call rax
        pop rbx
        ret
END call_register

# esi: the address of a function
FN call_short
        push rbx
        mov rax, rsi
        call rax
        pop rbx
        ret
END call_short

FN call_stack
        push rsi
        nop
        call [rsp]
        pop rsi
        ret
END call_stack

FN jump_first
        jmp helper
END jump_first

FN jump_short_first
        jmp 1f
        ud2
        ud2
1:      lea eax, [rdi + 1]
        ret
END jump_short_first

FN branch_first
        test edi, edi
        je 1f
        lea eax, [rdi + 1]
        ret
1:      mov eax, 1
        ret
END branch_first

FN count_branch_first
        mov ecx, edi
        jrcxz 1f
        lea eax, [rdi + 1]
        ret
1:      mov eax, 1
        ret
END count_branch_first

FN table_jump
        mov eax, edi
        and eax, 3
        lea rdx, [rip + table]
        movsxd rax, dword ptr [rdx + rax * 4]
        add rax, rdx
        jmp rax
1:      lea eax, [rdi + 1]
        ret
2:      mov eax, edi
        inc eax
        ret
END table_jump
        .section .rodata
        .p2align 2
table:  .long 1b - table, 2b - table, 1b - table, 2b - table
        .text

# 0: counts down to it through its own begin: edi hits
FN loop_to_begin
        nop
        nop
        nop
        dec edi
        jne loop_to_begin
        xor eax, eax
        ret
END loop_to_begin

FN tight_loop
        dec edi
        jne tight_loop
        xor eax, eax
        ret
END tight_loop

# The first argument of a call is in the carry: 1 if it was set
FN reads_carry
        setc al
        movzx eax, al
        ret
END reads_carry

FN calls_with_carry
        cmp edi, 1
        cmc
        call reads_carry
        ret
END calls_with_carry

# n + 1 from below the stack pointer; red_middle is probed
FN red_zone
        mov [rsp - 8], rdi
        mov [rsp - 120], rdi
        mov [rsp - 128], rdi
        jmp red_middle
END red_zone
FN red_middle
        nop
        nop
        mov rax, [rsp - 8]
        and rax, [rsp - 120]
        and rax, [rsp - 128]
        inc eax
        ret
END red_middle

# What a call of only_nops leaves in any register but rsp, against what was there: 0 if all is as it was
FN keeps_registers
        push rbx
        push rbp
        push r12
        push r13
        push r14
        push r15
        mov rax, 0x1001
        mov rbx, 0x1002
        mov rcx, 0x1003
        mov rdx, 0x1004
        mov rsi, 0x1005
        mov rdi, 0x1006
        mov rbp, 0x1007
        mov r8, 0x1008
        mov r9, 0x1009
        mov r10, 0x100a
        mov r11, 0x100b
        mov r12, 0x100c
        mov r13, 0x100d
        mov r14, 0x100e
        mov r15, 0x100f
        movq xmm0, rax
        movq xmm1, rbx
        movq xmm15, r15
        call only_nops
        sub rax, 0x1001
        sub rbx, 0x1002
        sub rcx, 0x1003
        sub rdx, 0x1004
        sub rsi, 0x1005
        sub rdi, 0x1006
        sub rbp, 0x1007
        sub r8, 0x1008
        sub r9, 0x1009
        sub r10, 0x100a
        sub r11, 0x100b
        sub r12, 0x100c
        sub r13, 0x100d
        sub r14, 0x100e
        sub r15, 0x100f
        or rax, rbx
        or rax, rcx
        or rax, rdx
        or rax, rsi
        or rax, rdi
        or rax, rbp
        or rax, r8
        or rax, r9
        or rax, r10
        or rax, r11
        or rax, r12
        or rax, r13
        or rax, r14
        or rax, r15
        movq rcx, xmm0
        sub rcx, 0x1001
        or rax, rcx
        movq rcx, xmm1
        sub rcx, 0x1002
        or rax, rcx
        movq rcx, xmm15
        sub rcx, 0x100f
        or rax, rcx
        pop r15
        pop r14
        pop r13
        pop r12
        pop rbp
        pop rbx
        ret
END keeps_registers
FN only_nops
        nop
        nop
        nop
        nop
        nop
        ret
END only_nops

# Refused: something jumps into the first five bytes
FN jumped_into
        nop
1:      nop
        dec edi
        nop
        jg 1b
        ret
END jumped_into

# Refused: a table leads there
FN table_into
        nop
9:      nop
        mov eax, edi
        lea rdx, [rip + bad_table]
        movsxd rax, dword ptr [rdx + rax * 4]
        add rax, rdx
        jmp rax
8:      ret
END table_into
        .section .rodata
        .p2align 2
bad_table: .long 8b - bad_table, 9b - bad_table
        .text

# Refused: a call that comes back into the first five bytes
FN call_inside
        push rbx
        call rax
        pop rbx
        ret
END call_inside

# Refused: shorter than a jump, and the next function follows at once
FN too_short
        ret
END too_short
        .globl right_behind
        .type right_behind, @function
right_behind:
        lea eax, [rdi + 1]
        ret
        .size right_behind, . - right_behind

# Refused: a system call restarts at its own address
FN system_call
        mov eax, edi
        syscall
        ret
END system_call

# Refused
FN breakpoint
        int3
        nop
        nop
        nop
        nop
        ret
END breakpoint

# n + 1, with a marker in the middle, in whose place a call's operands lie below the stack pointer
FN marker
        mov [rsp - 8], rdi
        nop
        mov eax, [rsp - 8]
        inc eax
        ret
END marker

FN wide_marker
        mov [rsp - 8], rdi
        nop dword ptr [rax + rax * 1 + 0]
        mov eax, [rsp - 8]
        inc eax
        ret
END wide_marker

FN helper
        lea eax, [rdi + 1]
        ret
END helper
        .p2align 4, 0xcc

        .section .rodata
        .p2align 3
one:    .quad 1
        .section .data.rel.ro, "aw"
        .p2align 3
helper_at: .quad helper
own_address_at: .quad own_address
        .section .note.GNU-stack, "", @progbits
