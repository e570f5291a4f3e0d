"""Findings in Chinese."""
# ruff: noqa: RUF001  Chinese punctuation is what is meant

from __future__ import annotations

from typing import Final

from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.losses import BETWEEN, INSIDE, OUTSIDE, WHOLE
from bubblescope.model.budget import Use

DEVICE_ADVICE: Final = {
    Use.COMMUNICATION: (
        "让它与计算重叠（预取、桶大小、单独的流），"
        "或找出最晚到达的 rank：集合通信中其他 rank 都在等它。"
    ),
    Use.COPY: "使用锁页内存，在单独的流上提前一步拷贝（pin_memory=True，non_blocking=True）。",
    Use.HOST_AFTER_SYNC: "去掉步内的阻塞调用：.item()、.cpu()、打印张量、torch.cuda.synchronize。",
    Use.HOST_DATA: "为数据加载增加 worker、预取和常驻 worker。",
    Use.HOST_OPTIMIZER: "使用优化器的 fused 或 foreach 形式（fused=True）。",
    Use.HOST_GC: "只在步间做垃圾回收（gc.disable、gc.freeze、gc.collect）。",
    Use.HOST_OPERATOR: (
        "减少下发次数：torch.compile、CUDA Graph、融合算子、更大的微批次；"
        "每个 rank 留一个空闲 CPU 核。"
    ),
    Use.HOST_PYTHON: "减少步内的 Python：torch.compile、CUDA Graph、少打日志。",
    Use.HOST_UNKNOWN: "带 Python 栈或 NVTX 范围的跟踪可以说明主机在做什么。",
    Use.LAUNCH_CALL: "更少、更大的 kernel；CUDA Graph 一次调用下发许多 kernel。",
    Use.LATENCY: "kernel 相对下发延迟太短：CUDA Graph、融合 kernel。",
    Use.EVENT_WAIT: "查看事件由哪个流记录，以及是否需要等待。",
    Use.UNTRACED: "查看当时运行的是什么：CUDA Graph、主机函数或其他进程的工作。",
    Use.UNLINKED: "更早开始跟踪，并跟踪运行时的调用。",
}
"""What to do about what a class of time costs."""

DEVICE_HEADLINES: Final = {
    Use.COMMUNICATION: "让通信与计算重叠，或缩短通信。",
    Use.COPY: "在单独的流上提前拷贝。",
    Use.HOST_AFTER_SYNC: "去掉步内的阻塞调用。",
    Use.HOST_OPTIMIZER: "融合优化器。",
    Use.HOST_GC: "只在步间做垃圾回收。",
    Use.HOST_OPERATOR: "减少下发次数，每次下发更多。",
    Use.HOST_PYTHON: "减少步内的 Python。",
    Use.HOST_UNKNOWN: "查明主机在做什么。",
    Use.LAUNCH_CALL: "下发更少、更大的 kernel。",
    Use.LATENCY: "融合短 kernel。",
    Use.EVENT_WAIT: "查看流在等待什么。",
    Use.UNTRACED: "查明未被跟踪的是什么。",
    Use.UNLINKED: "同时跟踪下发调用。",
}
"""同上，用几个词。"""

SENTENCES: Final[dict[tuple[str, str], str]] = {
    ("verdict", "of_it"): "{inherent_tenth} 是 {schedule} 调度固有的，{other_tenth} 不是。",
    ("verdict", "of_it_unrated"): (
        "空闲时间的 {inherent_share} 是 {schedule} 调度固有的，{other_share} 不是。"
    ),
    ("evidence", "hidden"): "单独去除它没有收益：其他原因仍让各 rank 等待。{shown}",
    ("headline", "inherent"): "更换调度，或增加微批次。",
    ("headline", "imbalance"): "均衡各级。",
    ("headline", "slow_rank"): "检查 rank {rank} 的设备。",
    ("headline", "variation"): "均衡各微批次。",
    ("headline", "order"): "按调度的顺序执行任务。",
    ("headline", "transfer"): "缩短或隐藏传输。",
    ("headline", "pause"): "把主机的停顿移出步内。",
    ("headline", "launch"): "更早下发。",
    ("headline", "send"): "在后台发送。",
    ("headline", "code"): "不让其他代码挡住任务。",
    ("headline", "sync"): "让集合通信与计算重叠。",
    ("headline", "unexplained"): "记录更多信息，以查明原因。",
    ("headline", "clock"): "同步时钟。",
    ("headline", "outside"): "查看 rank {rank} 在流水线之外做什么。",
    ("headline", "host_data"): "在后台加载数据。",
    ("headline", "checkpoint"): "在后台写检查点。",
    ("headline", "evaluation"): "减少评估，或在别处评估。",
    ("headline", "no_task"): "把未记录的代码移出步内。",
    ("headline", "receiving"): "让第一级更早开始。",
    **{("headline", use.value): text for use, text in DEVICE_HEADLINES.items()},
    ("verdict", "inherent"): "各 rank 有 {rate_share} 的时间空闲，全部是 {schedule} 调度固有的。",
    ("advice", "inherent"): (
        "只有增加微批次、减少流水线级数或更换调度才能降低（bubblescope whatif）。"
    ),
    ("verdict", "causes"): (
        "各 rank 有 {rate_share} 的时间空闲：其中 {inherent_share} 是 {schedule} 调度固有的，"
        "{other_share} 不是。"
    ),
    ("evidence", "no_wait"): (
        "{schedule} 调度固有的空闲占时间的 {inherent_share}。"
        "同样的任务不等待地重放一遍，在更短的时间里空闲 {no_wait_share}"
        "（即 report 的 no wait）：其中既有固有的空闲，也有各级、各 rank、各微批次长短不一所增加的。"
    ),
    ("verdict", "first"): (
        "首要原因是{cause}：占空闲时间的 {idle_share}（所有 rank 合计 {idle_ns}）。"
        "没有它，每步可缩短 {saved_ns}（{saved_share}）。"
    ),
    ("verdict", "next"): (
        "其次是{cause}：占空闲时间的 {idle_share}（{idle_ns}）；"
        "没有它，每步可缩短 {saved_ns}（{saved_share}）。"
    ),
    ("verdict", "first_hidden"): (
        "首要原因是{cause}：占空闲时间的 {idle_share}（所有 rank 合计 {idle_ns}）。"
        "单独去除它不会缩短每步时间：其他原因仍让各 rank 等待。"
    ),
    ("verdict", "next_hidden"): (
        "其次是{cause}：占空闲时间的 {idle_share}（{idle_ns}）；单独去除它不会缩短每步时间。"
    ),
    ("verdict", "inherent_unrated"): "各 rank 的空闲时间全部是 {schedule} 调度固有的。",
    ("verdict", "causes_unrated"): (
        "各 rank 的空闲时间中，{inherent_share} 是 {schedule} 调度固有的，{other_share} 不是。"
    ),
    ("evidence", "imbalance"): (
        "第 {stage} 级每个微批次耗时 {cost_ns}，是各级平均值（{mean_ns}）的 {mean_times}。"
    ),
    ("advice", "imbalance"): "把部分层移到其他级，或让嵌入层、输出层所在的级少放几层。",
    ("evidence", "slow_rank"): (
        "rank {rank} 比同级正常 rank 慢 {slow_share}，出现在 {of} 步中的 {steps} 步。"
    ),
    ("advice", "slow_rank"): "检查该设备的频率、温度、功耗上限和其他进程；若持续偏慢，请替换。",
    ("evidence", "variation"): (
        "同类同级任务的耗时离散度为 {spread_share}（标准差）；偏离最大的是 {task}："
        "{longest_ns}，通常为 {usual_ns}。"
    ),
    ("advice", "variation"): "均衡各微批次：按计算量而不是按 token 数打包序列。",
    ("evidence", "order"): "{count} 个任务未按调度顺序执行。第一个：{first}。",
    ("advice", "order"): "对照作业请求的顺序与调度的顺序；双流或迟到的接收会交换任务。",
    ("evidence", "transfer"): (
        "从 rank {from} 到 rank {to} 的传输最慢：平均 {delay_ns}；半数链路不超过 {median_ns}。"
    ),
    ("advice", "transfer"): "尽早或在后台发送，把相邻的级放在同一台机器上，或检查这条链路。",
    ("evidence", "pause"): (
        "主机在 {count} 个任务之前停顿，共 {late_ns}，其中 {pause_ns} 用于{pause}；"
        "rank {rank} 占 {rank_ns}，最长一次在 {task} 之前：{longest_ns}。"
    ),
    ("advice", "pause"): (
        "让所有 rank 在同一步做垃圾回收（gc.disable，每隔若干步 gc.collect），"
        "数据加载和检查点放到后台。"
    ),
    ("evidence", "launch"): (
        "{count} 个任务本可更早执行，却下发过晚，共 {late_ns}；其中 rank {rank} 占 {rank_ns}，"
        "最长一次在 {task} 之前：{longest_ns}。"
    ),
    ("advice", "launch"): (
        "主机跟不上设备：增大微批次、使用 CUDA Graph、减少同步、为每个 rank 留一个空闲 CPU 核。"
    ),
    ("evidence", "send"): (
        "{count} 个任务之前所在 rank 仍在发送，共 {late_ns}；其中 rank {rank} 占 {rank_ns}，"
        "最长一次在 {task} 之前：{longest_ns}。"
    ),
    ("advice", "send"): "查看接收方为何迟到；在后台发送（isend，复用缓冲区之前再等待）。",
    ("evidence", "code"): (
        "{count} 个任务本可更早开始，共 {late_ns}，但所在 rank 正在执行未记录的代码；"
        "其中 rank {rank} 占 {rank_ns}，最长一次在 {task} 之前：{longest_ns}。"
    ),
    ("advice", "code"): (
        "查看作业在那里做什么（py-spy 等 Python 性能分析器可以看到），或把它记录为任务；"
        "没有独占 CPU 核的 rank 处处都慢。"
    ),
    ("evidence", "sync"): (
        "{count} 个任务因所在 rank 正在做集合通信或优化器而推迟，共 {late_ns}；"
        "其中 rank {rank} 占 {rank_ns}。"
    ),
    ("advice", "sync"): "让集合通信与流水线重叠：梯度规约、参数收集、专家的 all-to-all。",
    ("evidence", "unexplained"): (
        "{count} 个任务推迟开始，共 {late_ns}，跟踪中没有原因；其中 rank {rank} 占 {rank_ns}，"
        "最长一次在 {task} 之前：{longest_ns}。"
    ),
    ("advice", "unexplained"): "带主机时间（下发、垃圾回收、数据加载）的跟踪可以说明原因。",
    ("evidence", "clock"): (
        "不同主机的时钟可能相差 {error_ns}；{early} 个结果在到达之前就被使用，最多提前 {early_ns}。"
    ),
    ("evidence", "clock_unknown"): (
        "不同主机的时钟相差多少未知；{early} 个结果在到达之前就被使用，最多提前 {early_ns}。"
    ),
    ("advice", "clock"): "同步时钟（PTP），或让 bubblescope 求解（--clock solve）。",
    ("verdict", "whole_step"): (
        "一步从开始到下一步开始为 {step_ns}（各 rank 平均），"
        "其中前向和反向所在的流水线阶段占 {phase_share}（其空闲见下文）。"
    ),
    ("evidence", "outside"): (
        "rank {rank} 每步有 {rank_ns}（{time_share}）用于{what}；各 rank 平均为 {mean_ns}。"
    ),
    ("advice", "checkpoint"): (
        "在后台写检查点（torch.distributed.checkpoint.async_save），或降低频率。"
    ),
    ("advice", "evaluation"): "降低评估频率、减少批次，或放到单独的作业中。",
    ("advice", "no_task"): (
        "查看作业在那里做什么（日志、.item()、指标；py-spy 可以看到），或把它记录为任务。"
    ),
    ("advice", "receiving"): "各 rank 在等待该步的第一个结果：查看第一级在此之前做什么。",
    ("verdict", "device"): "{bound}：设备空闲 {idle_tenth}，其中 {main_whole} 是{reason}。",
    ("verdict", "busy"): "{bound}：设备从不空闲。",
    ("verdict", "loss"): "{use}：每步每个 rank {per_step_ns}（{time_share}），{place}。",
    ("evidence", "loss"): "其中最多的是 {detail}，占 {detail_share}。",
    **{("advice", use.value): text for use, text in DEVICE_ADVICE.items()},
}
"""By role and key of a finding; the fields are its values."""

USES: Final = {
    Use.COMPUTE: "计算",
    Use.COMMUNICATION: "暴露的通信",
    Use.COPY: "暴露的拷贝",
    Use.HOST_AFTER_SYNC: "主机下发过晚：此前被阻塞调用占住",
    Use.HOST_DATA: "主机下发过晚：加载数据",
    Use.HOST_OPTIMIZER: "主机下发过晚：优化器",
    Use.HOST_GC: "主机下发过晚：垃圾回收",
    Use.HOST_OPERATOR: "主机下发过晚：算子",
    Use.HOST_PYTHON: "主机下发过晚：Python",
    Use.HOST_UNKNOWN: "主机下发过晚：跟踪没有说明原因",
    Use.LAUNCH_CALL: "下发调用进行中",
    Use.LATENCY: "下发延迟",
    Use.EVENT_WAIT: "等待其他流的事件",
    Use.UNTRACED: "等待跟踪中没有的工作",
    Use.UNLINKED: "跟踪中没有对应的下发",
}
"""Name of each class of time."""

BOUNDS: Final = {
    "compute": "受限于计算",
    "launch": "受限于下发",
    "data": "等待数据加载",
    "gc": "受 Python 垃圾回收拖累",
    "communication": "受限于通信",
    "copy": "受限于拷贝",
    "waiting": "等待跟踪中没有的工作",
}
"""What a run is bound by."""

REASONS: Final = {
    "host": "主机下发过晚",
    "call": "下发调用进行中",
    "latency": "下发延迟",
    "event": "流在等待事件",
    "untraced": "在等待跟踪中没有的工作",
    "unlinked": "不知由谁下发",
}
"""Why devices are idle."""

PLACES: Final = {
    INSIDE: "任务之内",
    BETWEEN: "任务之间",
    OUTSIDE: "流水线之外",
    WHOLE: "整步之内",
}
"""Where time is lost."""

PAUSES: Final = {
    "data": "数据加载",
    "gc": "垃圾回收",
    "checkpoint": "检查点",
    "evaluation": "评估",
    "gradient clipping": "梯度裁剪",
}
"""What a host pauses for; other pauses have names of their own."""

SPENT: Final = {
    "forward and backward": "前向和反向",
    "optimizer": "优化器",
    "garbage collection": "垃圾回收",
    "data loading": "等待数据",
    "collectives": "集合通信",
    "receiving": "等待接收",
    "sending": "发送",
    "checkpoint": "写检查点",
    "evaluation": "评估",
    "gradient clipping": "梯度裁剪",
    "waiting for send": "等待发送完成",
    "in no task": "未记录的代码",
    "other tasks": "其他任务",
}
"""What a rank is in."""

CAUSES: Final = {
    Cause.WARM_UP: ("预热", "调度固有，rank 的第一个反向之前"),
    Cause.STEADY: ("稳态", "调度固有，第一个反向与最后一个前向之间"),
    Cause.COOL_DOWN: ("冷却", "调度固有，最后一个前向之后"),
    Cause.IMBALANCE: ("级间不均衡", "各级的计算量不同"),
    Cause.SLOW_RANK: ("慢 rank", "某个 rank 比同级的其他 rank 或自己的其他步慢"),
    Cause.VARIATION: ("微批次差异", "各微批次的计算量不同"),
    Cause.ORDER: ("顺序偏离", "任务没有按调度的顺序执行"),
    Cause.TRANSFER: ("暴露的传输", "结果在 rank 之间传输"),
    Cause.PAUSE: ("主机停顿", "主机上的垃圾回收、数据加载、检查点或评估"),
    Cause.LAUNCH: ("主机下发", "任务本可执行，主机下发过晚"),
    Cause.SEND: ("发送阻塞", "rank 正在发送，或等待对方接收"),
    Cause.CODE: ("主机代码", "任务之前运行了作业中未记录的代码"),
    Cause.SYNC: ("同步", "集合通信和优化器"),
    Cause.UNEXPLAINED: ("未知", "任务本可执行却没有执行，跟踪没有说明原因"),
    Cause.CLOCK: ("时钟误差", "在不同主机时钟可能的误差之内"),
}
"""Name and meaning of each cause."""

HEADINGS: Final = {
    "verdict": "结论",
    "evidence": "依据",
    "advice": "下一步",
    "causes": "设备空闲的原因",
    "whose_times": "注意",
    "ranks": "各 rank",
    "gaps": "最长的空隙",
    "cause": "原因",
    "idle": "空闲时间",
    "share": "占比",
    "cost": "每步代价",
    "last": "去除后节省",
    "meaning": "含义",
    "rank": "rank",
    "other": "非固有",
    "mostly": "主要原因",
    "where": "位置",
    "before": "之前",
    "root": "等待的任务",
    "losses": "每步时间花在哪里（每个 rank）",
    "loss": "内容",
    "time": "每步",
}
"""Headings of tables and columns."""

NOTES: Final = {
    "schedule": "所测顺序",
    "times": "倍",
    "task": "第 {step} 步 rank {rank} 的 {label}",
    "bare_task": "rank {rank} 的 {label}",
    "rank": "rank {rank}",
    "more": "还有 {count} 个；--all 显示全部",
    "kept": "还有 {count} 段；对部分步骤用 `bubblescope why --steps` 可全部列出",
    "outside": "流水线阶段前后的{cause}：{idle_ns}",
    "step": "rank {rank}，第 {step} 步",
    "replay": "重放：与实测步时平均相差 {mean}，最多 {worst}",
    "doubt": "；时间与先后关系矛盾，原因仅供参考",
    "left_out": "；{count} 个结果在开始产生之前就被使用，已略去",
    "part": "；代价取自 {of} 步中的 {steps} 步",
    "host_times": "时间来自主机而非设备：任务的长度是 CPU 在其中停留的时间。若其工作在设备上运行，"
    "设备何时忙碌或空闲是未知的",
    "mixed_times": "{ranks} 的时间来自主机，其余来自设备：两者的任务和空闲时间不可比较",
    "unknown_times": "跟踪未说明 {ranks} 的时间来自设备还是主机",
}
"""What is printed beside the tables."""
