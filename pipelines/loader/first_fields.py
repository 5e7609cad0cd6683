"""The fields that settings had when runs began to keep what they paid for; never changed.

`pipelines.loader.validation.to_plain` leaves out every later field while it has its default, so that a field that was
added changes no digest, and no run is made again because of it. A class that is renamed is renamed here, too.
"""

from __future__ import annotations

from collections.abc import Mapping

FIRST: Mapping[str, str] = {
    "AccessLimit": "asked numbers",
    "Adapted": "epoch losses probabilities shares state why",
    "AdaptedDescription": "format gland how label models source what",
    "Alone": "name",
    "Apfl": "adaptive alpha alpha_lr mix name variant weights",
    "Apple": "L M cores eta_2 mu name schedule weights",
    "AsBegun": "name",
    "AsTrained": "name",
    "Ask": "days description modality more",
    "Asked": "description modality more since until",
    "Audits": "canaries inversion membership",
    "Augment": "balanced_at copies fid near_copies scale space synthesis until",
    "Average": "name",
    "BenchmarkSettings": "benchmark device name runs seed sites threads title",
    "Budget": "delta epsilon",
    "Cam": "first head_weight index map_weight name norm normalized stride widths",
    "Candidate": "affine files load patient session shape stack study",
    "CaptureWriter": "maker out pseudonymous",
    "Case": "methods seeds set what",
    "Chain": "first head links said since size stamp whole",
    "Classification": "classes kind ordered",
    "Clip": "architecture classes context mean name sentences sha256 std templates tokens weights window",
    "Cnn": "name norm widths",
    "Coding": "bits intercept relative signed slope",
    "Cohort": "gland images labels lesion mask patient patients position recipe split unit",
    "Colour": "name",
    "Config": (
        "audit augment device evaluate harmonize images model name outside pages pooling privacy processes "
        "public_pictures route runs seed sites split task threads title track train"
    ),
    "Counted": "cells classes date noise round run since",
    "CusFL": "balance cap contrast depth freeze name normalize projection r resync temperature",
    "CycleGan": (
        "amp augment batch betas blocks classification classifier copies critic cycle decay downs ema every "
        "identity keep_mean lr lr_c lr_d lr_t name noise norm pool residual steps structure variant width"
    ),
    "Desk": "archive db drop folder log model now target tries worker",
    "Details": "batch clip views",
    "Detector": "batch lr name on pictures size steps width window",
    "DicomNode": "called calling host kind limits listen port retrieve tls",
    "DicomNodeSource": (
        "blank cache_gib called calling derive host kind limits listen lossy port query retrieve select tls unit"
    ),
    "DicomSource": "blank derive folder kind lossy select unit",
    "DicomWeb": "ca certificate key kind limits page password plain_http token url user",
    "DicomWebSource": (
        "blank ca cache_gib certificate derive key kind limits lossy page password plain_http query select "
        "token unit url user"
    ),
    "Ditto": "lam name weights",
    "Document": "data lines problems",
    "DpHead": "begin lr name others rounds steps",
    "Elsewhere": "kind",
    "Encoder": "architecture file mean name sha256 size std window",
    "Evaluation": "checkpoint copies public reference variants window",
    "Event": "index kind seconds step total",
    "Examples": "gland images lesion mask position",
    "Exported": "name",
    "ExternalSettings": "device gland how models name no_gland out plugins readers seed source threads threshold",
    "Features": (
        "bandwidth categories components fourier hidden kind name normalize numbers of pictures public ranges softness"
    ),
    "FedAvg": "name weights",
    "FedAvgLocal": "name weights",
    "FedBabu": "name weights",
    "FedDG": "beta gamma name rim spectra tau weights window",
    "FedDyn": "alpha name weights",
    "FedFomo": "M name",
    "FedOpt": "beta1 beta2 eta name tau weights",
    "FedProx": "mu name weights",
    "FedRep": "body_epochs body_steps head_epochs head_steps name weights",
    "FedRod": "gamma name weights",
    "FedSld": "name normalize reduction share",
    "FedTurns": "name rotation weights",
    "Fenda": "local name weights",
    "Finding": "classes distance examples name p_value positive score threshold unlike",
    "FineTuned": "epochs lr name trainable",
    "FittedPrior": "delta epsilon name of_mean of_spread pictures prior squared within",
    "Found": "doubts rows sites sort task",
    "Frame": "b_value frames index path pixels slices transfer_syntax values",
    "GlandMask": "folder names pattern segment",
    "Group": "built_in group needs tag what",
    "Harmonize": "copies sampling scale score shared synthesis translate veto",
    "Heard": "counts evidence refused replies site",
    "HeurFedAMP": "alpha lam name sigma xi",
    "HistogramMatch": "name region",
    "Hospital": "device name now pause pooled public root settings simulation",
    "Identifiers": "days joined numbers uids words",
    "Identity": "name",
    "Inbox": "digests entry expected folder kept limits numbers odd received unfit",
    "Inception": "file name sha256",
    "Intake": "classes items of rejected splits unit unselected waiting",
    "Inversion": "images lr sign steps tv",
    "IopFL": "name tau weights",
    "Item": "detail name patient reason series state studies",
    "Keep": "images nights results",
    "Limits": (
        "answer_s cnr contrast_high contrast_low cycle drift edges edges_centre gain gland_order "
        "gland_order_centre largest_gib lesion_order most per_second prevalence prevalence_centre retries "
        "timeout_s"
    ),
    "Line": "how personal shared",
    "Listen": "address port",
    "Local": "name",
    "MLflow": "experiment patience_s uri",
    "Maker": "blank digest key label profile site vetoed",
    "MaskLabels": "folder kind minimum_pixels names pattern segment",
    "MaskWriter": "candidates folder gland images maker names out pseudonymous visits",
    "Masks": "dated folder names pattern segment unreadable",
    "Membership": "auc control_auc high low members others reason tpr_at_1 tpr_at_10",
    "Message": "facts tensors",
    "Mlp": "dropout hidden logits name",
    "MoE": "gate joint name weights",
    "Models": "copies epsilon least models reference",
    "ModelsDescription": "experts format gland images inputs kind names ordered personal run shared title what",
    "Moments": "name opposed others_classes others_gram radius ridge",
    "Monai": "arguments name network norm",
    "Moon": "mu name temperature weights",
    "NiftiSource": "folder kind patient pattern unit",
    "Night": "archive ask keep minutes model read recommended results_to state tries write",
    "Nothing": "name",
    "Nyul": "name region",
    "OfAll": "name",
    "Opening": "algorithm begun cohort evaluation_noise ordered protection recipient seed target task work",
    "Operation": "console jobs kit last_seen lost name patience_s place shown stop",
    "Oracle": "name",
    "Outcome": (
        "best detail exit folder item kind losses merged missing path received round run state totals trouble verdicts"
    ),
    "Own": "blocks head kind name network stem",
    "PFedMe": "K beta eta lam name weights",
    "PFedMoAP": "choice d experts gate gate_lr heads lam name weights",
    "PGFed": "alpha_0 beta eta_2 mu name slopes weights",
    "Pace": "free limits",
    "Part": "alpha classes kind least number of seed tests",
    "Partial": "depth name weights",
    "Passes": "channels_last precision",
    "PatientLevel": "chunk clip delta epsilon loss_bound noise sampling unit views",
    "PerFCL": "gamma mu name temperature weights",
    "PerFedAvg": "alpha delta name variant weights",
    "Percentile": "high low name region",
    "Permission": "plugins used",
    "PhantomSource": "contrast damaged export format kind labels patients scanner seed significant slices",
    "PictureFolder": "folder kind",
    "PictureMasks": "folder pattern values",
    "PictureSource": "folder image kind label masks patient pattern table values where",
    "Pictures": "channels fit jitter kind margin size",
    "Place": "device doubt folder home kit name root site threads",
    "PlainAccess": "augment batch events generator passes splits stream",
    "Policy": (
        "algorithms budget delta max_bytes max_failures max_model_bytes min_patients plugins pooling public "
        "recipients requests require trusted_models unit"
    ),
    "Pretrained": "batch epochs head lr name on pictures seed strength",
    "PrivateAccess": "augment booked counts dry fit limit protection sizes source splits strays units uses ways",
    "PrivateEvolution": (
        "candidates components delta epsilon jitter mixed name prior public roughness rounds settled share "
        "spread threshold"
    ),
    "Problem": "line message where",
    "Profile": "blank confirmed keep_characteristics keep_device keep_private keep_times shift_days",
    "Protection": "chunk clip counts_noise cut loss_bound noise sampling validation_noise views votes_noise",
    "Protocol": (
        "averages corrected echo_ms echo_train gain gamma matrix repetition_ms shading sharpening smoothing snr window"
    ),
    "Public": "name prior",
    "PublicPictures": "folder gland labels source",
    "Quality": (
        "auc_after auc_before cnr_after cnr_before contrast_ratio cycle_mae drift gland_correlation "
        "gradient_correlation hallucinated lesion_correlation masked shift sw_after sw_before"
    ),
    "Query": "description modality more since until",
    "Radiomics": "name window",
    "RandomConvolutions": "filters name scales seed width",
    "Randomized": "batch lr name prior seed steps strength width",
    "Range": "foreground high low why",
    "Read": "gland no_gland select unit",
    "ReadStudy": "candidate evidence examples labels patient percentiles scanner study",
    "Ready": (
        "axes centring digest facts features gland images likeness module names ordered scale source task "
        "translate window"
    ),
    "Real": "name",
    "Reinhard": "name region",
    "ReportWriter": "maker out pseudonymous replaced",
    "ResNet18": "name norm small width",
    "Route": "lines personal shared",
    "Routing": (
        "affine batch beta epochs layerwise lr margin mode name noise radius statistics terms tried_below variant"
    ),
    "Rule": "kinds needed seconds",
    "Rules": "batch betas critic_lr critic_steps gp_weight lr noise steps views",
    "Run": "details epsilon noised rows run",
    "RunLock": "_held root tidy",
    "Sampling": "closeness components features max_passes name neighbours neighbours_of perplexity spacing variant",
    "Scaffold": "global_lr name",
    "Scanner": (
        "averages axes b_values distortion_mm endorectal field_strength_t gamma ghost gradient_nonlinearity "
        "institution manufacturer matrix model real_world rescale smoothing snr threshold unit window zoom"
    ),
    "Scattering": "angles name scales",
    "Schedule": "deadline_s participation quorum rounds",
    "Score": "components current delta epsilon images margin perplexity release seeds steps target variant",
    "Secret": "env file",
    "Segmentation": "classes kind target",
    "Site": "gland home images labels missing name others patients scanners source studies",
    "SiteSettings": "exclude gland home labels max_rejected methods part policy readers source test veto work",
    "Slices": "centre context kind size slices spacing_mm values",
    "Split": "fold folds test train validation",
    "Stack": "affine b_values volumes",
    "Stage": "intact name needs outside run settings version",
    "Statement": (
        "accountant adjacency audit budget delta epsilon expires first format last legend lines meaning "
        "noised outside paragraphs refused released replaced runs settings sha256 signed site size splits "
        "stated title torn unit unprotected what"
    ),
    "Stop": "_asked",
    "Study": (
        "base cases evidence facts image measures methods name patient percentiles resample_patients seeds "
        "set study title unit what"
    ),
    "Table": "by_slice by_study classes rows unreadable values",
    "TableLabels": "file kind label patient slice study values",
    "TableSource": "columns file kind label missing patient positive_above separator values where",
    "Taken": "labels patient position scanner told",
    "Task": "begun classes frozen inputs kind model",
    "TensorBoard": "folder",
    "TensorFile": "classes part patient shapes split",
    "TensorSource": "file kind",
    "Tensors": "inputs kind",
    "Tent": "batch epochs lr margin mode name tried_below",
    "TestTimeTraining": "batch epochs lr margin name",
    "Tls": "ca certificate key name",
    "Tonight": "bugs cut denied doubted ended files left redo seen short tasks unreachable",
    "Track": "mlflow pages tensorboard",
    "Training": "method_images method_model method_start method_work methods schedule start work",
    "Tuning": "epochs lr steps trainable",
    "UNet": "dropout levels name norm width",
    "UnlabelledTable": "columns file kind missing patient separator where",
    "Unsupervised": "beta noise radius terms variant",
    "Variant": "calibration checkpoint of quantile tuning",
    "Verdict": "item kept",
    "Volumes": "centre depth depth_mm kind size spacing_mm values",
    "Wanted": "captures gland pseudonymous select threshold unit",
    "Ways": "module objective way",
    "Week": "judged name positive reasons refused scored unlike",
    "Weights": "file head name public sha256",
    "WganGp": (
        "batch clip critic_steps delta ema epsilon gp_weight latent learns looks lr name prior "
        "prior_components prior_images prior_lr prior_steps rate sampling steps variant views width"
    ),
    "Work": (
        "augment balance batch channels_last epochs keep_optimizer lr momentum optimizer precision randomize "
        "steps weight_decay"
    ),
    "World": "command config engine fresh now outside root simulation stop",
    "Write": "captures identity key store threshold",
    "ZScore": "name over region",
    "ZeroShot": "name",
}
