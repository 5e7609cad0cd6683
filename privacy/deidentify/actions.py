"""The action for each attribute: PS3.15 table E.1-1 (2026c) as in dicom-anonymizer, and our own lists.

The table lists attributes that are known to identify. An attribute that it does not list is kept only if it cannot
contain free text, or if it is on a list here of technical attributes that images need; this is stricter than the Basic
Profile.
"""

from __future__ import annotations

from collections.abc import Mapping

from dicomanonymizer.dicom_anonymization_databases import dicomfields_2026c as edition
from pydicom.datadict import tag_for_keyword

from privacy.deidentify.stored_values import KEPT_PRIVATE, NUMBERS

COLUMNS: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "D": edition.D_TAGS,
    "Z": edition.Z_TAGS,
    "X": edition.X_TAGS,
    "U": edition.U_TAGS,
    "Z/D": edition.Z_D_TAGS,
    "X/Z": edition.X_Z_TAGS,
    "X/D": edition.X_D_TAGS,
    "X/Z/D": edition.X_Z_D_TAGS,
    "X/Z/U*": edition.X_Z_U_STAR_TAGS,
}
# Repeating groups (50xx curves, 60xx overlays) are removed as a whole and need no lines here.
TABLE: Mapping[int, str] = {
    tag[0] << 16 | tag[1]: action for action, tags in COLUMNS.items() for tag in tags if len(tag) == 2
}


def split_words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def parse_tags(keywords: str) -> frozenset[int]:
    """The tags of DICOM keywords that are written one after another.

    Raises:
        ValueError: one of them is no keyword of PS3.6.
    """
    tag_of_keyword = {keyword: tag_for_keyword(keyword) for keyword in keywords.split()}
    wrong = sorted(keyword for keyword, tag in tag_of_keyword.items() if tag is None)
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: not keywords of PS3.6; correct them, or install a newer pydicom")
    return frozenset(tag for tag in tag_of_keyword.values() if tag is not None)


# Dates of a scanner or a standard, the same for all patients: shifted, they would reveal the shift.
NOBODYS_TIMES = parse_tags(
    "ContextGroupVersion ContextGroupLocalVersion TemplateVersion TemplateLocalVersion DateOfLastCalibration "
    "TimeOfLastCalibration DateTimeOfLastCalibration CalibrationDateTime CalibrationDate CalibrationTime "
    "DateOfManufacture DateOfInstallation DateOfLastDetectorCalibration TimeOfLastDetectorCalibration "
    "DateOfGainCalibration TimeOfGainCalibration EffectiveDateTime InformationIssueDateTime ExpiryDate "
    "ProductExpirationDateTime SourceStrengthReferenceDate SourceStrengthReferenceTime ProcedureCreationDate "
    "ProcedureExpirationDate ProcedureLastModifiedDate HangingProtocolCreationDateTime ItemInventoryDateTime "
    "SOPAuthorizationDateTime"
)

PIXELS = parse_tags("PixelData FloatPixelData DoubleFloatPixelData")
BIRTH = parse_tags("PatientBirthDate")

# Free text that the table does not remove and an image needs; it is still searched for identifiers.
KEPT_TEXT = parse_tags(
    "Manufacturer ManufacturerModelName SoftwareVersions CodeValue LongCodeValue CodingSchemeDesignator "
    "CodingSchemeVersion CodeMeaning SequenceName PulseSequenceName ImagedNucleus FilterType ConvolutionKernel "
    "ReceiveCoilName TransmitCoilName ReceiveCoilManufacturerName TransmitCoilManufacturerName "
    "MultiCoilElementName MultiCoilConfiguration "
    "PositionReferenceIndicator DimensionIndexPrivateCreator FunctionalGroupPrivateCreator DimensionDescriptionLabel "
    "FrameLabel StackID RescaleType WindowCenterWidthExplanation LUTExplanation LUTLabel ModalityLUTType "
    "SegmentLabel SegmentAlgorithmName AlgorithmName AlgorithmVersion OpticalPathIdentifier "
    "ReferencedOpticalPathIdentifier AttenuationCorrectionMethod ReconstructionMethod ScatterCorrectionMethod "
    "Radiopharmaceutical RadiopharmaceuticalRoute ContrastBolusRoute TriggerSourceOrType CardiacFramingType "
    "TypeOfFilters TransducerData ProcessingFunction AcquisitionMode DoseModeName "
    "SecondaryCaptureDeviceManufacturer SecondaryCaptureDeviceManufacturerModelName"
)
# Technical text that cannot stay is replaced, not removed: some images are invalid without it. Codes go as a whole.
REPLACED_TEXT = (KEPT_TEXT | parse_tags("ContentDescription MetaboliteMapDescription")) - parse_tags(
    "CodeValue LongCodeValue CodingSchemeDesignator CodingSchemeVersion CodeMeaning"
)
KEPT_BINARY = parse_tags(
    "RedPaletteColorLookupTableData GreenPaletteColorLookupTableData BluePaletteColorLookupTableData "
    "AlphaPaletteColorLookupTableData SegmentedRedPaletteColorLookupTableData "
    "SegmentedGreenPaletteColorLookupTableData SegmentedBluePaletteColorLookupTableData LUTData ICCProfile "
    "ExtendedOffsetTable ExtendedOffsetTableLengths"
)
# The options of PS3.15 E.3.5 and E.3.4, as far as images carry them.
DEVICE = parse_tags(
    "DeviceSerialNumber StationName GantryID DetectorID PlateID CassetteID GeneratorID DeviceDescription "
    "XRayDetectorID XRaySourceID"
)
CHARACTERISTICS = parse_tags("PatientSex PatientAge PatientSize PatientWeight PregnancyStatus SmokingStatus")

# Numbers that define the image: they are never altered. A file where one is an identifier is refused.
ESSENTIAL = parse_tags(
    "Rows Columns NumberOfFrames BitsAllocated BitsStored HighBit PixelRepresentation SamplesPerPixel "
    "PlanarConfiguration ImagePositionPatient ImageOrientationPatient PixelSpacing ImagerPixelSpacing "
    "NominalScannedPixelSpacing PixelAspectRatio SliceThickness SpacingBetweenSlices SliceLocation "
    "GridFrameOffsetVector DiffusionBValue DiffusionGradientOrientation DiffusionBValueXX DiffusionBValueXY "
    "DiffusionBValueXZ DiffusionBValueYY DiffusionBValueYZ DiffusionBValueZZ InStackPositionNumber "
    "DimensionIndexValues"
) | parse_tags(" ".join(NUMBERS))

# Coded words of closed lists: they stay even if a patient is called Se, like the code of a spin echo.
CLOSED = parse_tags(
    "Modality PhotometricInterpretation PatientPosition BurnedInAnnotation RecognizableVisualFeatures "
    "LossyImageCompression ScanningSequence SequenceVariant ScanOptions MRAcquisitionType VolumetricProperties "
    "PixelPresentation DiffusionDirectionality SegmentationType PresentationLUTShape ContentQualification"
)
TERMS = split_words(
    "CR CT DX ES GM IO IVUS MG MR NM OP OPT OT PT PX RF RG SC SEG SM SR US XA XC MONOCHROME1 MONOCHROME2 RGB YBR_FULL "
    "YBR_FULL_422 YBR_ICT YBR_RCT YBR_PARTIAL_420 HFS HFP HFDR HFDL FFS FFP FFDR FFDL YES NO 00 01 SE IR GR EP RM SK "
    "MTC SS TRSS SP MP OSP NONE PER CG PPG FC PFF PFP FS 2D 3D VOLUME SAMPLED DISTORTED MIXED MONOCHROME COLOR "
    "TRUE_COLOR DIRECTIONAL BMATRIX ISOTROPIC BINARY FRACTIONAL LABELMAP IDENTITY INVERSE PRODUCT "
    "RESEARCH SERVICE"
) | {"PALETTE COLOR"}

# Usual words of an image's type; they stay unless they are a name as a whole.
IMAGE_TYPES = split_words(
    "ORIGINAL DERIVED PRIMARY SECONDARY OTHER MIXED NONE AXIAL LOCALIZER VOLUME PROJECTION IMAGE REFORMATTED RESAMPLED "
    "M P R I ND NORM DIS2D DIS3D MOSAIC FM ADC EADC FA TRACEW TRACE DIFFUSION CALC_BVALUE PERFUSION TENSOR MAGNITUDE "
    "PHASE REAL IMAGINARY M_SE M_FFE M_IR P_SE R_SE FFE SE T1 T2 PD MIP MINIP MPR MEAN SUB SUBTRACTION ADDITION DIXON "
    "WATER FAT IN_PHASE OPP_PHASE MAXIMUM MINIMUM FILTERED DIVISION MULTIPLICATION STATIC DYNAMIC GATED"
)

# Without these the pixels cannot be read: a file that would lose one is refused.
NEEDED = parse_tags(
    "SOPClassUID SOPInstanceUID StudyInstanceUID SeriesInstanceUID Rows Columns BitsAllocated SamplesPerPixel "
    "PhotometricInterpretation"
)

# Sequences that may be emptied: PS3.3 C.7.6.14 requires the attribute and allows no item in it.
MAY_BE_EMPTY = parse_tags("AcquisitionContextSequence")

# Sequences whose items are distinguished only by their number.
PER_FRAME = parse_tags("PerFrameFunctionalGroupsSequence SharedFunctionalGroupsSequence")

# Codes of other schemes are a hospital's own and may contain any text.
PUBLIC_SCHEMES = split_words(
    "ACR ASTM-sigpurpose C4 CD10 CPT4 CVX DC DCM DOI FDATRIAL FMA HPC I10 I10P I11 I9 I9C IBSI ICDO3 IMAGENCI "
    "ISO3166_1 ISO639_1 ITIS_TSN LN MA MDNS MGI MDC MSH NCIt NDC NEU NICIP NYUMCCG POS RADELEMENT RADLEX RFC3066 "
    "RXNORM SCT SNM3 SRT UBERON UCUM UMLS UNS UPC X12DE"
)

# Gradients of the vendors: PS3.15 table E.3.10-1 (safe private attributes), as (creator, group, element).
GRADIENTS = frozenset(
    {("SIEMENS MR HEADER", 0x0019, element) for element in (0x0D, 0x0E, 0x27)}
    | {("GEMS_ACQU_01", 0x0019, element) for element in (0xBB, 0xBC, 0xBD)}
    | {("Philips Imaging DD 001", 0x2001, 0x04)}
    | {("Philips MR Imaging DD 001", 0x2005, element) for element in (0xB0, 0xB1, 0xB2)}
    | {("Image Private Header", 0x0065, 0x37)}
)
SAFE_PRIVATE: frozenset[tuple[str, int, int]] = GRADIENTS | frozenset[tuple[str, int, int]](KEPT_PRIVATE)
"""All private attributes that a reader of images needs."""
